"""The queue of the reconciler: what it says of runs that wait; a look at it costs the same for any number."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.site.test_reconcile import Nodes, report
from tests.site.world import World
from webapp.inventory.models import GpuPool
from webapp.jobs import services
from webapp.jobs.allocate import allocate
from webapp.jobs.models import Run, Status
from webapp.jobs.reconcile import reconcile


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def cost(nodes: Nodes) -> int:
    with CaptureQueriesContext(connection) as captured:
        reconcile(nodes)
    return len(captured)


def test_a_round_costs_the_same_with_5_and_with_50_runs_in_the_queue(world: World, nodes: Nodes) -> None:
    world.hear(*world.nodes[:2])
    for _ in range(5):
        world.launch()
    first, again = cost(nodes), cost(nodes)
    for _ in range(45):
        world.launch()
    world.hear(*world.nodes[:2])  # launching may have taken long
    news, quiet = cost(nodes), cost(nodes)
    assert Run.objects.filter(status=Status.QUEUED).count() == 50
    assert (news, quiet) == (first, again)
    assert again < first  # one statement for all that there is to say
    reasons = list(Run.objects.order_by("pk").values_list("waits_for", flat=True))
    assert reasons[0] == "Waits for 4 GPUs in west, 0 are idle: 4 do not answer"
    assert reasons[49] == f"{reasons[0]}; 49 ahead in the queue"
    assert all(Run.objects.values_list("needs_action", flat=True))


def test_a_round_says_what_asking_for_one_run_alone_says(world: World, nodes: Nodes) -> None:
    """`allocate` looks for itself, run by run: the look through the whole queue must come to the same."""
    world.hear()
    other = GpuPool.objects.create(dc=world.dcs[1], gpu_type="h100")
    runs = [world.launch() for _ in range(6)]
    runs[2].job.document["device"]["kind"] = "cpu"
    runs[3].job.document["datacenters"][1]["name"] = "mid:h100"
    runs[4].job.document["datacenters"][2]["name"] = "gone"
    for run in runs:
        run.job.save()
    reconcile(nodes)
    first = Run.objects.get(pk=runs[0].pk)
    assert first.status == Status.STARTING
    by_round = {run.pk: (run.status, run.waits_for, run.needs_action) for run in Run.objects.all()}
    for run in runs[1:]:
        Run.objects.filter(pk=run.pk).exclude(status=Status.FAILED).update(waits_for="", needs_action=False)
    for run in runs[1:]:
        assert not allocate(run)
    alone = {run.pk: (run.status, run.waits_for, run.needs_action) for run in Run.objects.all()}
    assert by_round == alone
    assert by_round[runs[4].pk][0] == Status.FAILED
    assert "0 are idle: there are 0 in total" in by_round[runs[3].pk][1]
    assert not other.nodes.exists()


def test_what_gets_free_goes_to_the_oldest_that_fits(world: World, nodes: Nodes) -> None:
    world.hear()
    first, second, third = (world.launch() for _ in range(3))
    reconcile(nodes)
    report(first, "running")
    services.cancel_run(world.users["operator"], second)
    reconcile(nodes)
    third.refresh_from_db()
    assert third.waits_for == "Waits for 4 GPUs in east, 0 are idle"
    report(first, "finished", exit_code=0)
    reconcile(nodes)
    third.refresh_from_db()
    assert (third.status, third.waits_for) == (Status.STARTING, "Waits for 12 of 12 ranks to become ready")


def test_one_run_that_cannot_be_read_keeps_no_other_from_its_turn(world: World, nodes: Nodes) -> None:
    world.hear()
    broken, good = world.launch(), world.launch()
    broken.job.document["cell"]["dc_of_stage"] = [9]
    broken.job.save()
    reconcile(nodes)
    good.refresh_from_db()
    broken.refresh_from_db()
    assert (broken.status, good.status) == (Status.QUEUED, Status.STARTING)
