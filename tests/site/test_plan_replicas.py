"""Data parallelism next to a plan, launched: whole pipelines in each data centre, after the checks."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.locations import gpus_needed
from tests.site.test_plan_cross_dc import asked, text
from tests.site.world import World
from webapp.accounts.models import AuditEntry
from webapp.computations.computing import work_at
from webapp.computations.models import Computation, ComputationKind
from webapp.jobs.models import Run
from webapp.planning.models import Plan
from webapp.planning.services import create_plan

BUTTON = "Launch data parallelism"


@pytest.fixture
def operator(world: World) -> Client:
    return world.client("operator")


def plan_of_two(world: World, partitions: int) -> Plan:
    """Four GPUs in each of two data centres, and what a launch trains."""
    two = ("east", "mid")
    of = world.plan.request
    job = {**of["job"], "partitions": partitions, "parameters_per_stage": 5e7}
    document = {
        **of,
        "method": "search",
        "policy": "auto",
        "datacenters": [{**dc, "gpus": 4} for dc in of["datacenters"] if dc["name"] in two],
        "links": [link for link in of["links"] if set(link["between"]) == set(two)],
        "job": job,
        "allreduce": True,
    }
    return create_plan(
        world.users["operator"],
        team=world.team,
        name="two",
        request=document,
        training=world.plan.training,
    )


@pytest.fixture(params=[1, 2], ids=["no pipeline", "two stages"])
def plan(world: World, request: pytest.FixtureRequest) -> Plan:
    return plan_of_two(world, request.param)


def compare(operator: Client, plan: Plan) -> Plan:
    """The plan, once the search worker has compared it with data parallelism."""
    operator.post(asked(plan))
    work_at(Computation.objects.get(kind=ComputationKind.CROSS_DC).pk)
    return plan


@pytest.fixture
def compared(operator: Client, plan: Plan) -> Plan:
    return compare(operator, plan)


def launched(client: Client, plan: Plan, **fields: Any) -> Any:
    return client.post(reverse("planning:plan-launch-replicas", args=[plan.pk]), fields, follow=True)


def test_the_data_parallelism_of_a_plan_is_launched(world: World, operator: Client, compared: Plan) -> None:
    assert BUTTON in text(operator, compared)
    assert BUTTON in operator.get(asked(compared, "plan-cross-dc")).content.decode()
    assert BUTTON not in text(world.client("viewer"), compared)
    launched(operator, compared, idempotency_key="once")
    launched(operator, compared, idempotency_key="once")
    (run,) = Run.objects.all()
    data = run.job.plan_copy["data_parallelism"]
    job = parse(TrainJob, run.job.document)
    names = [dc.name for dc in job.datacenters]
    by_pipeline = [{names[dc] for dc in dcs} for dcs in job.dcs_of_pipeline]
    assert all(len(dcs) == 1 for dcs in by_pipeline), "no pipeline crosses the WAN"
    counts = {name: by_pipeline.count({name}) for name in names}
    assert counts == data["pipelines_per_dc"]
    assert gpus_needed(run.job.document) == data["gpus_used"]
    assert (job.cell.stages, job.cell.microbatches) == (data["stages"], data["microbatches"])
    assert run.job.plan == compared
    created = AuditEntry.objects.filter(verb="create", team=world.team).latest("pk")
    assert created.after["name"] == run.job.name == f"{compared.name} (data parallelism)"


def test_what_was_not_compared_is_not_launched(operator: Client, plan: Plan) -> None:
    assert BUTTON not in text(operator, plan)
    page = launched(operator, plan).content.decode()
    assert "Not launched: compare the plan with data parallelism first." in page
    assert not Run.objects.exists()


def test_a_plan_that_trains_nothing_says_so(operator: Client, compared: Plan) -> None:
    Plan.objects.filter(pk=compared.pk).update(training=None)
    assert "Data parallelism cannot be launched: The plan has no section Training" in text(operator, compared)
    assert "the plan has no section Training" in launched(operator, compared).content.decode()
    assert not Run.objects.exists()
