"""The form of a new plan says whether the planned model fits the chosen nodes, as a launch will count it."""

from typing import Any

import pytest
from django.urls import reverse

from engine.job.memory import stage_memory
from tests.site.test_new_plan import made
from tests.site.world import World
from webapp.inventory.models import Node
from webapp.planning.document import site_job, train_document

GIB = 2**30


def said(world: World, **changes: Any) -> str:
    """What the page says of room, without its markup."""
    values = {
        "model": "gpt-a",
        "datacenters": [dc.pk for dc in world.dcs],
        "device": "emulated",
        "partitions": "4",
        "microbatches": "4",
        "tp": "1",
        "model_micro_batch": "1",
        **changes,
    }
    answer = world.client("operator").post(reverse("planning:plan-model"), values)
    room = answer.context.get("room")
    text = answer.content.decode()
    assert ("Room for a launch" in text) == (room is not None)
    return "" if room is None else text.partition("Room for a launch</dt>")[2]


def test_what_fits_and_what_does_not(world: World) -> None:
    assert "The planned model fits" in said(world), "80 GB of an A100"
    west = world.nodes[2]
    Node.objects.filter(pk=west.pk).update(seen_hardware={"memory_bytes": 4 * GIB}, gpus=4)
    text = said(world)
    assert "The planned model does not fit" in text
    assert "one of west-1 has 1.07 GB" in text
    assert "choose a stand-in with its times" in text
    others = [dc.pk for dc in world.dcs[:2]]
    assert "The planned model fits" in said(world, datacenters=others)


def test_the_memory_that_agents_of_cuda_nodes_have_seen_counts(world: World) -> None:
    seen = {"gpus": [{"name": "a", "memory_bytes": 2 * GIB}, {"name": "b", "memory_bytes": 3 * GIB}]}
    Node.objects.update(device="cuda", seen_hardware=seen)
    assert "has 2.15 GB" in said(world, device="cuda")


def test_it_is_what_the_launch_counts(world: World) -> None:
    text = said(world)
    plan = made(
        world, model="gpt-a", partitions="4", microbatches="4", policy="1f1b", max_dp_cells="1", mfu="0.4"
    )
    option = plan.result["options"][plan.result["best"]]
    memory = stage_memory(site_job(train_document(plan.request, option, plan.training)))
    needed = max(stage.total_bytes for stage in memory)
    shown = float(text.partition("about ")[2].split()[0])
    assert shown == pytest.approx(needed / 1e9, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"datacenters": []},
        {"datacenters": ["x", "9" * 30]},
        {"device": "tpu"},
        {"microbatches": ""},
        {"cp": "2"},
        {"model": "config", "config": "{}"},
    ],
)
def test_nothing_is_said_where_too_little_is_known(world: World, changes: dict[str, Any]) -> None:
    assert said(world, **changes) == ""


def test_data_centres_of_others_tell_nothing(world: World) -> None:
    values = {"model": "gpt-a", "datacenters": [world.dcs[0].pk], "device": "emulated", "partitions": "4"}
    values |= {"microbatches": "4", "tp": "1", "model_micro_batch": "1"}
    answer = world.client("stranger").post(reverse("planning:plan-model"), values)
    assert answer.context["room"] is None
