"""The page of a plan against data parallelism over the WAN: asked for, followed, stopped, of a what-if."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from engine.inputs import parse
from engine.plan.cross_dc_plan import compare_plan, default_variants
from engine.plan.request import PlanRequest
from tests.site.test_plans import DOCUMENT, made
from tests.site.world import World
from webapp.computations import services as computations
from webapp.computations.computing import work_at
from webapp.computations.models import Computation, ComputationKind
from webapp.planning.models import Plan

BUTTON = "Compare with data parallelism"


@pytest.fixture
def operator(world: World) -> Client:
    return world.client("operator")


@pytest.fixture
def plan(world: World) -> Plan:
    job = {**DOCUMENT["job"], "parameters_per_stage": 5e7}
    return made(world, job=job, allreduce=True)


def asked(plan: Plan, name: str = "plan-cross-dc-compare") -> str:
    return reverse(f"planning:{name}", args=[plan.pk])


def text(client: Client, plan: Plan, **query: Any) -> str:
    return client.get(reverse("planning:plan-detail", args=[plan.pk]), query).content.decode()


def test_the_search_worker_compares_and_the_page_shows_it(world: World, operator: Client, plan: Plan) -> None:
    assert BUTTON in text(operator, plan)
    viewer = text(world.client("viewer"), plan)
    assert BUTTON not in viewer
    assert "Operators can have it computed." in viewer
    waiting = operator.post(asked(plan)).content.decode()
    assert "Waits for the search worker" in waiting
    assert "every 1500ms" in waiting
    operator.post(asked(plan))
    (computation,) = Computation.objects.of(ComputationKind.CROSS_DC)  # one, though asked for twice
    work_at(computation.pk)
    answer = operator.get(asked(plan, "plan-cross-dc"))
    rows = answer.context["cross_dc"]["rows"]
    request = parse(PlanRequest, plan.request)
    expected = [one.as_dict() for one in compare_plan(request, default_variants(request))]
    assert [(row["pipeline"]["iteration_ms"], row["data"]["iteration_ms"]) for row in rows] == [
        (row["pipeline"]["iteration_ms"], row["data"]["iteration_ms"]) for row in expected
    ]
    shown = answer.content.decode()
    assert BUTTON not in shown
    assert "every 1500ms" not in shown
    first = expected[0]["data"]
    pairs, gbps = first["node_pairs"], first["boundary_gbps"]
    assert f"With data parallelism {pairs} send" in shown
    assert f"{gbps:.1f} Gbit/s" in shown
    assert text(operator, plan).count('id="cross-dc"') == 1


def test_a_what_if_has_a_comparison_of_its_own(operator: Client, plan: Plan) -> None:
    operator.post(asked(plan), {"gpus-1": "6"})
    (computation,) = Computation.objects.of(ComputationKind.CROSS_DC)
    assert computation.request["document"]["datacenters"][1]["gpus"] == 6
    assert BUTTON in text(operator, plan)
    assert "Waits for the search worker" in text(operator, plan, **{"gpus-1": "6"})
    # A single data centre has nothing to compare.
    assert 'id="cross-dc"' not in text(operator, plan, **{"gpus-1": "0"})


def test_one_that_is_stopped_can_be_asked_for_again(operator: Client, plan: Plan) -> None:
    operator.post(asked(plan))
    claimed = computations.claim(Computation.objects.get(kind=ComputationKind.CROSS_DC).pk)
    assert claimed is not None
    assert b"Stopping" in operator.post(asked(plan, "plan-cross-dc-stop")).content
    computations.finish(claimed, {})
    stopped = operator.get(asked(plan, "plan-cross-dc")).content.decode()
    assert "Stopped." in stopped
    assert BUTTON in stopped
    operator.post(asked(plan))
    assert Computation.objects.of(ComputationKind.CROSS_DC).count() == 2


def test_what_cannot_be_compared_is_said(world: World, operator: Client) -> None:
    plan = made(world)  # without the gradients' size
    operator.post(asked(plan))
    work_at(Computation.objects.get(kind=ComputationKind.CROSS_DC).pk)
    shown = operator.get(asked(plan, "plan-cross-dc")).content.decode()
    assert shown.count("Data parallelism is not possible: job.parameters_per_stage is not given") == 1


def test_a_plan_of_several_layouts_stands_in_the_list(world: World, operator: Client) -> None:
    model = {"layers": 8, "hidden": 64, "heads": 4, "vocab": 256, "seq": 64}
    made(world, job={"model": model, "partitions": [2, 4], "microbatches": 4})
    assert "2, 4" in operator.get(reverse("planning:plan-list")).content.decode()
