"""Plans that the search worker computes: asked for, followed, stopped, failed, sent twice."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.urls import reverse

from engine.inputs import parse
from engine.plan.answer import plan as solve
from engine.plan.request import PlanRequest
from tests.site.computations import plan_asked_for
from tests.site.world import World
from webapp.computations.computing import work_at
from webapp.computations.models import Computation
from webapp.planning import services
from webapp.planning.models import Plan
from webapp.planning.work import answers_at_once

CREATE = reverse("planning:plan-create")


def values(world: World, **more: Any) -> dict[str, Any]:
    return {
        "team": world.team.pk,
        "name": "large",
        "datacenters": [dc.pk for dc in world.dcs],
        "source": "times",
        "forward_ms": 20,
        "backward_ms": 40,
        "recompute_ms": 20,
        "partitions": 6,
        "activation_bytes": 5_000_000,
        "microbatches": 4,
        "method": "search",
        "policy": "crosspipe-ud",
        "order": "gpus",
        "objective": "throughput",
        "bill": "used",
        "idempotency_key": "k",
        **more,
    }


def page_of(computation: Computation) -> str:
    return reverse("planning:plan-computing", args=[computation.pk])


def test_what_may_take_long_is_computed_by_the_worker_and_the_page_follows_it(world: World) -> None:
    client = world.client("operator")
    answers = [client.post(CREATE, values(world)) for _ in range(2)]
    assert not Plan.objects.filter(name="large").exists()
    computation = Computation.objects.get(kind="plan")  # one, though the form was sent twice
    assert {answer["Location"] for answer in answers} == {page_of(computation)}
    assert "Waiting for the search worker" in client.get(page_of(computation)).content.decode()
    assert "Being computed" in client.get(reverse("planning:plan-list")).content.decode()
    work_at(computation.pk)
    plan = Plan.objects.get(name="large")
    there = reverse("planning:plan-detail", args=[plan.pk])
    assert client.get(page_of(computation))["Location"] == there
    assert client.get(page_of(computation), headers={"HX-Request": "true"})["HX-Redirect"] == there
    same = solve(parse(PlanRequest, plan.request)).as_dict()
    assert [o["iteration_ms"] for o in plan.result["options"]] == [o["iteration_ms"] for o in same["options"]]
    assert "Being computed" not in client.get(reverse("planning:plan-list")).content.decode()
    taken = client.post(CREATE, values(world, idempotency_key="other"))
    assert "has a plan of this name" in str(taken.context["form"].errors)


def test_a_quick_plan_that_is_sent_twice_is_there_once(world: World) -> None:
    client = world.client("operator")
    answers = [client.post(CREATE, values(world, policy="auto")) for _ in range(2)]
    plan = Plan.objects.get(name="large")
    assert {a["Location"] for a in answers} == {reverse("planning:plan-detail", args=[plan.pk])}
    assert Computation.objects.filter(kind="refine", of_plan__plan=plan).count() <= 1


@pytest.mark.parametrize("method", ["search", "algorithm1"])
def test_one_that_is_stopped_leaves_no_plan_and_can_be_asked_for_again(world: World, method: str) -> None:
    client = world.client("operator")
    client.post(CREATE, values(world, method=method))
    computation = Computation.objects.get(kind="plan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webapp.computations.wires.Wires.beat", lambda wires: setattr(wires, "stopped", True))
        client.post(reverse("planning:plan-stop", args=[computation.pk]))
        Computation.objects.filter(pk=computation.pk).update(state="queued")  # a worker is at it already
        work_at(computation.pk)
    computation.refresh_from_db()
    assert (computation.state, Plan.objects.filter(name="large").exists()) == ("cancelled", False)
    page = client.get(page_of(computation)).content.decode()
    assert "There is no plan" in page
    form = client.get(CREATE, {"again": computation.pk}).context["form"]
    assert (form["name"].value(), form["policy"].value(), form["method"].value()) == (
        "large",
        "crosspipe-ud",
        method,
    )
    assert client.get(CREATE, {"again": "x"}).status_code == 404


def test_a_name_that_was_given_away_meanwhile_gets_a_number(world: World) -> None:
    computation = plan_asked_for(world)
    world.plan.name = "large"
    world.plan.save()
    work_at(computation.pk)
    computation.refresh_from_db()
    assert computation.of_plan.plan.name == "large v2"
    with pytest.raises(ValidationError):
        services.rename_plan(world.users["operator"], computation.of_plan.plan, "large")


def test_what_the_engine_refuses_is_said_on_the_page(world: World) -> None:
    computation = plan_asked_for(world)
    document = {**computation.request["document"], "max_dp_cells": -1}
    Computation.objects.filter(pk=computation.pk).update(request={"document": document, "training": None})
    work_at(computation.pk)
    page = world.client("viewer").get(page_of(computation)).content.decode()
    assert "max_dp_cells" in page.lower()
    assert "Change and compute again" not in page


def test_the_bound_on_what_a_page_waits_for(world: World) -> None:
    small = {**world.plan.request, "method": "search", "policy": "auto"}
    sites = [{**small["datacenters"][0], "name": f"dc{i}"} for i in range(6)]
    changes: list[dict[str, Any]] = [
        {"datacenters": sites, "links": []},
        {"datacenters": [{**sites[0], "gpus": 6_000}], "links": []},
        {"policy": "crosspipe-loop"},
        {"job": {**small["job"], "microbatches": 10_000}},
        {"method": "algorithm1", "policy": "atlas", "max_dp_cells": 1_000},
    ]
    assert answers_at_once(parse(PlanRequest, small))
    assert not [change for change in changes if answers_at_once(parse(PlanRequest, {**small, **change}))]
