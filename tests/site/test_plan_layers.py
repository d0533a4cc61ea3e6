"""Layers per stage on the page of a new plan, on the page of its answer, and in the run that it launches."""

from typing import Any

import pytest
from django.urls import reverse

from engine.inputs import parse
from engine.job.job import TrainJob
from tests.site.test_plan_of_model import planned
from tests.site.world import World
from webapp.inventory.models import Node
from webapp.jobs.services import launch_plan
from webapp.planning import compose
from webapp.planning.models import Plan

CREATE = reverse("planning:plan-create")


def posted(world: World, **changes: Any) -> dict[str, Any]:
    return {
        "team": world.team.pk,
        "name": "layers",
        "datacenters": [dc.pk for dc in world.dcs],
        "source": "model",
        "model": "tiny",
        "mfu": 0.4,
        "partitions": "4",
        "microbatches": 4,
        "method": "search",
        "policy": "1f1b",
        "objective": "throughput",
        "order": "gpus",
        "bill": "used",
        **changes,
    }


@pytest.mark.django_db
def test_a_new_plan_balances_its_layers_or_takes_them_by_hand(world: World) -> None:
    client = world.client("operator")
    assert client.get(CREATE).context["form"]["spread"].value() == "balanced"
    client.post(CREATE, posted(world, spread="balanced"))
    balanced = Plan.objects.get(name="layers")
    assert balanced.request["job"]["layers_per_stage"] == "balanced"
    client.post(CREATE, posted(world, name="by hand", spread="balanced", layers_per_stage="1, 2, 2, 1"))
    by_hand = Plan.objects.get(name="by hand")
    assert by_hand.request["job"]["layers_per_stage"] == [1, 2, 2, 1]
    assert by_hand.result["options"][by_hand.result["best"]]["layers_per_stage"] == [1, 2, 2, 1]
    for plan in (balanced, by_hand):
        values = compose.initial_of(plan)
        again = {"spread": values.get("spread"), "layers_per_stage": values.get("layers_per_stage")}
        job = compose.request_of({**values, **again, "datacenters": world.dcs})["job"]
        assert job["layers_per_stage"] == plan.request["job"]["layers_per_stage"]
    table = client.get(f"/plans/{by_hand.pk}/stages.csv").content.decode()
    assert [line.split(",")[3] for line in table.splitlines()] == ["Layers", "1", "2", "2", "1"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1, 2, 2", "One number per stage: partitions is 4"),
        ("1, 2, 2, 2", "Must add up to the model&#x27;s 6 layers"),
        ("3, 3, 0, 0", "greater than or equal to 1"),
        ("few", "Enter whole numbers"),
    ],
)
def test_bad_layers_are_refused_beside_their_field(world: World, text: str, message: str) -> None:
    answer = world.client("operator").post(CREATE, posted(world, layers_per_stage=text))
    assert message in str(answer.context["form"].errors["layers_per_stage"])
    assert not Plan.objects.filter(name="layers").exists()


def test_a_launched_plan_trains_with_the_layers_that_it_counted(world: World) -> None:
    Node.objects.update(device="cpu")
    values = {"model": "tiny", "trains": "planned", "device": "cpu", "partitions": [4], "policy": "1f1b"}
    plan = planned(world, **values, layers_per_stage=[1, 2, 2, 1])
    world.hear()
    run = launch_plan(world.users["operator"], plan, plan.result["best"])
    job = parse(TrainJob, run.job.document)
    assert job.cell.layers_per_stage == [1, 2, 2, 1]
    assert [len(layers) for layers in job.layers_of_stage] == [1, 2, 2, 1]
    small = planned(world, **{**values, "trains": "small"}, layers_per_stage=[1, 2, 2, 1])
    run = launch_plan(world.users["operator"], small, small.result["best"])
    assert parse(TrainJob, run.job.document).cell.layers_per_stage is None
