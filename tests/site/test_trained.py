"""What a launch trains, and which nodes it lacks, is said before and after it in the same words."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.site.world import VALUES, World, make_node
from webapp.inventory.models import Device, Node
from webapp.jobs.dry import dry_run
from webapp.jobs.services import launch_plan
from webapp.planning import compose
from webapp.planning.models import Plan
from webapp.planning.services import create_plan
from webapp.planning.trained import trained_words

CONFIGS = Path(__file__).parent.parent / "configs"


def planned(world: World, **changes: Any) -> Plan:
    values = {**VALUES, "datacenters": world.dcs, **changes}
    return create_plan(
        world.users["operator"],
        team=world.team,
        name="asked",
        request=compose.request_of(values),
        training=compose.training_of(values),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"a stand-in of \d+,\d{3} parameters with the planned times"),
        ({"device": "cpu"}, r"a stand-in of \d+,\d{3} parameters with its own times"),
    ],
)
def test_button_check_and_run_say_what_is_trained(world: World, changes: Any, message: str) -> None:
    Node.objects.update(device=changes.get("device", "emulated"))
    plan = planned(world, **changes)
    client, best = world.client("operator"), plan.result["best"]
    check = next(c for c in dry_run(plan, best)["checks"] if c["name"] == "Model")
    words = re.fullmatch(rf"A launch trains ({message})\.", check["text"])
    assert words, check
    page = unescape(client.get(f"/plans/{plan.pk}/").content.decode())
    what = f"trains {re.escape(words[1])}"
    assert re.search(rf"<button[^>]*>Launch D = 1 *<span[^>]*>{what}</span></button>", page)
    assert check["text"] in page
    form = unescape(client.get(f"/plans/{plan.pk}/launch/{best}/").content.decode())
    assert form.count(f"trains {words[1]}") == 2
    run = launch_plan(world.users["operator"], plan, best)
    assert f"trains {words[1]}" in unescape(client.get(f"/runs/{run.pk}/").content.decode())
    assert f"trains {words[1]}" in unescape(client.get(f"/runs/{run.pk}/clone/").content.decode())


def test_the_planned_model_is_called_so() -> None:
    shape = {"layers": 4, "hidden": 64, "heads": 4, "seq": 64}
    request = {"job": {"model": shape}}
    own = {"model": {**shape, "family": "gpt", "ffn": 256}, "cell": {"stages": 2}}
    assert trained_words(own, request) == "the planned model of 236,928 parameters"
    reads = {**own, "model": {**own["model"], "tokenizer": "/data/tokenizer.json", "vocab": 256}}
    assert trained_words(reads, request).startswith("the planned model of ")
    other = {**own, "model": {**own["model"], "layers": 2}}
    assert trained_words(other, request).startswith("a stand-in of ")
    assert trained_words(own, None).startswith("a model of ")
    assert trained_words(own, {"job": {"model": "llama-3-8b"}}).startswith("a stand-in of ")
    big = {"model": {"layers": 24, "hidden": 1024, "heads": 16, "seq": 64}, "cell": {"stages": 2}}
    assert "million parameters" in trained_words(big, request)
    assert trained_words({"model": {"sparse": True}, "cell": {"stages": 2}}, request) == (
        "a model that this version does not know"
    )


@pytest.mark.parametrize(
    "changes", [{"init": "/models/qwen2"}, {"tokenizer": "/models/qwen2/tokenizer.json"}]
)
def test_weights_and_tokens_make_no_other_model(changes: dict[str, str]) -> None:
    config = json.loads((CONFIGS / "qwen2.5-7b.json").read_text())
    request = {"job": {"model": {**config, "seq": 4096}}}
    own = {"model": {"config": config, "seq": 4096, **changes}, "cell": {"stages": 2}}
    assert trained_words(own, request) == "the planned model of 7.62 billion parameters"
    other = {**config, "rope_theta": 10_000.0}
    assert trained_words({**own, "model": {**own["model"], "config": other}}, request).startswith(
        "a stand-in "
    )


def test_a_stand_in_is_named_in_every_list_of_runs(world: World) -> None:
    plan = planned(world)
    run = launch_plan(world.users["operator"], plan, plan.result["best"])
    size = trained_words(run.job.document, plan.request).split()[3]
    for page in ("/runs/", "/runs/queue/", f"/plans/{plan.pk}/"):
        text = unescape(world.client("viewer").get(page).content.decode())
        assert f"stand-in, {size}" in text, page
    run.job.plan_copy = {}
    run.job.save()
    text = unescape(world.client("viewer").get("/runs/").content.decode())
    assert "stand-in" not in text
    assert f"{size}</td>" in text


def test_nodes_that_must_come_first_are_named(world: World) -> None:
    west = world.dcs[2]
    Node.objects.filter(dc=west).update(device=Device.CUDA)
    make_node(west, "west-2", gpus=4, device=Device.EMULATED)  # has never joined
    check = next(
        c for c in dry_run(world.plan, world.plan.result["best"])["checks"] if c["name"] == "GPUs in west"
    )
    assert not check["ok"]
    assert "there are 0 in total, west-2 must join first, 4 of another device do not count" in check["text"]
    assert check["text"] in unescape(
        world.client("operator").get(f"/plans/{world.plan.pk}/").content.decode()
    )
