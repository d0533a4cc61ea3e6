"""What a launch trains, and which nodes it lacks, is said before and after it in the same words."""

import re
from html import unescape
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
    ("changes", "said"),
    [
        ({}, r"a stand-in of \d+,\d{3} parameters with the planned times"),
        ({"device": "cpu"}, r"a stand-in of \d+,\d{3} parameters with its own times"),
    ],
)
def test_button_check_and_run_say_what_is_trained(world: World, changes: Any, said: str) -> None:
    Node.objects.update(device=changes.get("device", "emulated"))
    plan = planned(world, **changes)
    client, best = world.client("operator"), plan.result["best"]
    check = next(c for c in dry_run(plan, best)["checks"] if c["name"] == "Model")
    words = re.fullmatch(rf"A launch trains ({said})\.", check["text"])
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
    assert trained_words(own, request) == "the planned model"
    other = {**own, "model": {**own["model"], "layers": 2}}
    assert trained_words(other, request).startswith("a stand-in of ")
    assert trained_words(own, None).startswith("a model of ")
    assert trained_words(own, {"job": {"model": "llama-3-8b"}}).startswith("a stand-in of ")
    big = {"model": {"layers": 24, "hidden": 1024, "heads": 16, "seq": 64}, "cell": {"stages": 2}}
    assert "million parameters" in trained_words(big, request)
    assert trained_words({"model": {"sparse": True}, "cell": {"stages": 2}}, request) == (
        "a model that this version does not know"
    )


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
