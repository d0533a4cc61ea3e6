"""A model and chats that a team brings: planned, launched, killed, continued on other stages, taken along.

Pages of the site are asked for as a browser does. What the site sends to its nodes is started as agents start
it, each data centre's ranks by a host of its own. The oracle is one process with transformers and AdamW.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from engine.commands.data import prepare_command
from engine.commands.export import command as export_command
from engine.dataset.corpus import open_prepared
from engine.job.launch import LaunchSpec
from tests.dataset.tokenizers import CHAT, byte_folder
from tests.ports import free_port
from tests.runtime.machines import Machines
from tests.site.test_folds import plan_form
from tests.site.test_reconcile import Nodes, report
from tests.site.world import World
from webapp.inventory.models import Node
from webapp.jobs.models import Run, Status
from webapp.jobs.reconcile import reconcile
from webapp.planning.models import Plan

STEPS, MORE, SEQ, SEED = 6, 9, 32, 3
RATE = 3e-3
SHAPE = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def given_model(folder: Path) -> None:
    """A folder of Hugging Face: a Qwen2 (biases, grouped queries, tied) with random weights, a tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE))
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.05)
    model.save_pretrained(folder)
    byte_folder(folder, CHAT)


def prepared_chats(root: Path, tokenizer: Path) -> Path:
    chats = [
        [
            {"role": "user", "content": f"{n} and {n}?"},
            {"role": "assistant", "content": f"{2 * n}" + "!" * (n % 9)},
        ]
        for n in range(60)
    ]
    (root / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    source = {"path": str(root / "chats.jsonl"), "format": "jsonl", "messages": "messages"}
    (root / "data.json").write_text(json.dumps({"sources": [source], "tokenizer": str(tokenizer)}))
    out = root / "chats"
    arguments = [str(root / "data.json"), "--out", str(out), "--processes", "1"]
    done = CliRunner().invoke(prepare_command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return out


def one_process(model: Path, data: Path, batch: int) -> tuple[list[float], Any]:
    """The losses of so many steps, and the model after the last, by transformers and torch alone."""
    from transformers import AutoModelForCausalLM, Trainer

    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    decayed = set(Trainer.get_decay_parameter_names(None, trained))  # neither norms nor biases
    named = list(trained.named_parameters())
    groups = [
        {"params": [parameter for name, parameter in named if name in decayed]},
        {"params": [parameter for name, parameter in named if name not in decayed], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    corpus = open_prepared(str(data), seq=SEQ, seed=SEED, vocabulary=SHAPE["vocab_size"], field="data")
    losses = []
    for step in range(MORE):
        tokens, targets = map(torch.from_numpy, corpus.batch(step, batch, np.arange(batch)))
        logits = trained(input_ids=tokens, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, trained


def planned(world: World, stages: int, model: Path, data: Path) -> Plan:
    """A plan of so many stages over two data centres, as *New plan* makes it of the model's config."""
    values = {
        "name": f"{stages} stages",
        "datacenters": [dc.pk for dc in world.dcs[:2]],
        "model": "config",
        "config": (model / "config.json").read_text(),
        "model_seq": SEQ,
        "prepared": data,
        "init": model,
        "device": "cpu",
        "partitions": stages,
        "microbatches": 4,
        "policy": "1f1b",
        "spread": "even",
        "max_dp_cells": 1,
        "steps": STEPS,
        "lr": RATE,
        "seed": SEED,
    }
    sent = {name: value if isinstance(value, list) else str(value) for name, value in values.items()}
    form = plan_form(world, **sent)
    answer = world.client("operator").post("/plans/new/", form.data)
    assert answer.status_code == 302, answer.context["form"].errors
    return Plan.objects.get(name=values["name"])


def launched(world: World, plan: Plan, **changes: Any) -> tuple[Run, list[LaunchSpec]]:
    """The run that the launch form gives, and what the site sends to the nodes of it."""
    client, address = world.client("operator"), f"/plans/{plan.pk}/launch/{plan.result['best']}/"
    page = client.get(address)
    assert page.context["trains"].startswith("the planned model of ")
    shown = {field.name: field.value() for field in page.context["form"] if field.value() is not None}
    answer = client.post(address, {**shown, "dtype": "fp64", **changes})
    assert answer.status_code == 302, answer.context["form"].errors
    world.hear()
    nodes = Nodes()
    reconcile(nodes)
    sent = [kwargs["spec"] for _, task, kwargs in nodes.sent if task == "start_ranks"]
    return Run.objects.latest("pk"), [LaunchSpec.from_json(spec) for spec in sent]


def machines_of(specs: list[LaunchSpec], folder: Path) -> Machines:
    """A machine for each node, which starts its ranks as the site asked, but on ports that are free here."""
    machines = Machines(specs[0].job, folder, [spec.local for spec in specs])
    local = {"rendezvous_host": "127.0.0.1", "rendezvous_port": free_port(), "ports": None}
    ranks = tuple(dataclasses.replace(rank, host="127.0.0.1") for rank in specs[0].ranks)
    machines.spec = dataclasses.replace(specs[0], ranks=ranks, **local)
    return machines


@pytest.mark.long
@pytest.mark.timeout(600)
def test_their_model_learns_their_chats_and_comes_back(world: World, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, saves = tmp_path / "qwen2", str(tmp_path / "saves")
    given_model(model)
    data = prepared_chats(tmp_path, model)
    seen = {"memory_bytes": 2**34, "files": {"roots": [str(tmp_path)], "schemes": []}}
    Node.objects.update(device="cpu", seen_hardware=seen, gpus=1)
    Node.objects.filter(dc=world.dcs[0]).update(gpus=2)  # three stages need both data centres

    first = planned(world, 3, model, data)
    keeps = {"checkpoint_dir": saves, "checkpoint_every": "2", "recoveries": "5", "recovery_wait_s": "60"}
    run, specs = launched(world, first, **keeps)
    assert {rank.dc_name for rank in specs[0].ranks} == {"east", "mid"}
    batch = specs[0].job.cell.global_batch
    losses, trained = one_process(model, data, batch)
    with machines_of(specs, tmp_path / "first") as machines:
        machines.at_step(3)
        machines.kill_rank(1)
        result = machines.result()
    assert [event["attempt"] for event in machines.of_kind("recovery") if event.get("attempt")]
    assert result["losses"] == pytest.approx(losses[:STEPS], rel=1e-6)

    for state in ("running", "finished"):
        report(run, state, range(3))
        world.hear()
        reconcile(Nodes())
    run.refresh_from_db()
    assert run.status == Status.SUCCEEDED

    Node.objects.update(gpus=1)  # two stages need both data centres now
    second = planned(world, 2, model, data)
    other, specs = launched(world, second, steps=str(MORE), **{**keeps, "recoveries": "", "resume": saves})
    assert (specs[0].job.cell.stages, specs[0].job.cell.global_batch) == (2, batch)
    with machines_of(specs, tmp_path / "second") as machines:
        result = machines.result()
    assert result["resumed_from"] == STEPS
    assert result["losses"] == pytest.approx(losses[STEPS:], rel=1e-6)
    assert {run.job.plan_id, other.job.plan_id} == {first.pk, second.pk}

    out = tmp_path / "trained"
    done = CliRunner().invoke(export_command, [saves, "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float64)
    tokens = torch.arange(40).view(2, 20)
    with torch.no_grad():
        assert torch.allclose(again(tokens).logits, trained(tokens).logits, rtol=1e-5, atol=1e-6)
