"""The dry run: says what a launch would meet, and changes nothing."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.inputs import parse
from engine.job.changed import changed
from engine.job.job import TrainJob
from engine.job.memory import NUMBERS_PER_PARAMETER, stage_memory
from engine.nn.model import Stage
from tests.site.world import World
from webapp.accounts.models import AuditEntry
from webapp.inventory.models import WanLink
from webapp.jobs.dry import dry_run, dry_run_document
from webapp.jobs.models import Run


def checks(world: World) -> dict[str, dict[str, Any]]:
    answer = dry_run(world.plan, world.plan.result["best"])
    return {check["name"]: check for check in answer["checks"]}


def test_all_is_well_where_a_launch_would_start_at_once(world: World) -> None:
    world.hear()
    answer = dry_run(world.plan, world.plan.result["best"])
    assert answer["ok"], answer
    assert [check["name"] for check in answer["checks"]] == [
        "Document",
        "Model",
        "Data",
        "Memory",
        "GPUs in east",
        "GPUs in mid",
        "GPUs in west",
        "Link east – mid",
        "Link mid – west",
        "Broker",
    ]


def test_nothing_is_changed(world: World) -> None:
    rows = AuditEntry.objects.count()
    client = world.client("operator")
    response = client.post("/runs/dry/", {"plan": world.plan.pk, "option": world.plan.result["best"]})
    assert response.json()["ok"] is False
    assert Run.objects.count() == 0
    assert AuditEntry.objects.count() == rows


def test_gpus_that_are_silent_or_busy_only_delay(world: World) -> None:
    from webapp.jobs.allocate import allocate

    world.hear(*world.nodes[:2])
    by_name = checks(world)
    assert "4 do not answer" in by_name["GPUs in west"]["text"]
    assert not by_name["GPUs in west"]["ok"]
    assert not by_name["GPUs in west"]["blocks"]
    world.hear()
    assert allocate(world.launch())
    assert "0 of 4 emulated GPUs are idle, 4 needed" in checks(world)["GPUs in east"]["text"]


def test_links_that_have_changed_or_gone_are_named(world: World) -> None:
    WanLink.objects.filter(pk=world.link.pk).update(latency_ms=40)
    by_name = checks(world)
    assert not by_name["Link east – mid"]["ok"]
    assert "40 ms" in by_name["Link east – mid"]["text"]
    assert "assumes 10 ms" in by_name["Link east – mid"]["text"]
    WanLink.objects.exclude(pk=world.link.pk).delete()
    assert "no longer in the inventory" in checks(world)["Link mid – west"]["text"]


def test_a_stage_that_does_not_fit_is_refused_with_both_figures(world: World) -> None:
    run = world.launch()
    model = {"layers": 6, "hidden": 4096, "heads": 32, "seq": 4096}
    large = {"model": model, "cell.micro_batch": 64, "cell.activation_bytes": None}
    answer = dry_run_document(changed(run.job.document, large), world.team)
    memory = next(check for check in answer["checks"] if check["name"] == "Memory")
    assert not memory["ok"]
    assert memory["blocks"]
    assert "of 80 GiB (a100-80g)" in memory["text"]


def test_others_plans_do_not_exist_and_options_are_checked(world: World) -> None:
    def ask(who: str, **values: Any) -> int:
        return int(world.client(who).post("/runs/dry/", values).status_code)

    assert ask("stranger", plan=world.plan.pk, option=0) == 404
    assert ask("viewer", plan=world.plan.pk, option=0) == 200
    assert ask("viewer", plan=world.plan.pk, option=99) == 400
    assert ask("viewer", plan="x", option=0) == 404


def job_of(**changes: Any) -> TrainJob:
    document = {
        "datacenters": [{"name": "here", "gpus": 64}],
        "stages": 3,
        "microbatches": 4,
        "policy": "1f1b",
        "model": {"layers": 6, "hidden": 64, "heads": 4, "seq": 32},
        "device": "cpu",
        "steps": 1,
    }
    return parse(TrainJob, {**document, **changes})


@given(stages=st.integers(1, 6), layers=st.integers(6, 12), hidden=st.integers(1, 8), seq=st.integers(1, 64))
def test_weights_and_optimizer_of_all_stages_are_those_of_the_model(
    stages: int, layers: int, hidden: int, seq: int
) -> None:
    job = job_of(stages=stages, model={"layers": layers, "hidden": hidden * 4, "heads": 4, "seq": seq})
    state = sum(stage.state_bytes for stage in stage_memory(job))
    assert state == NUMBERS_PER_PARAMETER * 4 * job.model.shape.parameters


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 4), ("fp32", 4), ("fp64", 8)])
def test_weights_and_optimizer_are_counted_as_wide_as_the_executor_has_them(dtype: str, width: int) -> None:
    """bf16 computes with copies of fp32 weights. A GPU showed that these were counted at half of that."""
    job = job_of(dtype=dtype, stages=1)
    stage = Stage(job, 0)
    optimizer = torch.optim.AdamW(stage.parameters())
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = [optimizer.state[p][name] for p in stage.parameters() for name in ("exp_avg", "exp_avg_sq")]
    stage.keep_cast()
    copies = [copy for chunk in stage.chunks for cast in chunk.cast for copy in cast.copies.values()]
    assert bool(copies) is (dtype == "bf16")
    held = [*stage.parameters(), *(p.grad for p in stage.parameters()), *moments]
    assert sum(tensor.nbytes for tensor in (*held, *copies)) == stage_memory(job)[0].state_bytes
    assert {tensor.element_size() for tensor in held} == {width}


def test_activations_by_hand() -> None:
    # 1F1B, 3 stages: the first holds three microbatches at once, the last one. Two blocks a stage; a block
    # keeps 16·s·h = 16·32·64 = 32,768 numbers of 4 bytes a microbatch of one sequence. Its backward pass
    # takes ffn·h more for the gradient of its largest matrix, before that is added, and (ffn + h)·s next to
    # it; in bf16, whose products add it themselves, (2·ffn + h)·s of 2 bytes. The last stage also has the
    # logits of 32 tokens over 256 bytes, and its norm.
    memory = stage_memory(job_of())
    assert [stage.in_flight for stage in memory] == [3, 2, 1]
    blocks = [n * 2 * 32_768 * 4 for n in (3, 2, 1)]
    once, head = (256 * 64 + (256 + 64) * 32) * 4, (256 + 2 * 64) * 32 * 4
    assert [stage.activation_bytes for stage in memory] == [
        blocks[0] + once,
        blocks[1] + once,
        blocks[2] + head + once,
    ]
    recomputed = stage_memory(job_of(recompute=True))
    assert recomputed[0].activation_bytes == (3 * 2 * 32 * 64 + 2 * (32_768 - 32 * 64)) * 4 + once
    in_bf16 = stage_memory(job_of(dtype="bf16"))
    assert in_bf16[0].activation_bytes == (3 * 2 * 32_768 + (2 * 256 + 64) * 32) * 2


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_more_of_anything_never_needs_less(dtype: str) -> None:
    def whole(**changes: Any) -> int:
        return sum(stage.total_bytes for stage in stage_memory(job_of(dtype=dtype, **changes)))

    assert whole(micro_batch=2) > whole() >= whole(recompute=True)
    assert whole(policy="gpipe") >= whole()
