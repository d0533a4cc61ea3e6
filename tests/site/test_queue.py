"""The queue of the reconciler: what it says of runs that wait; a look at it costs the same for any number."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from engine.versions import series
from tests.site.test_reconcile import Nodes, report
from tests.site.world import World
from webapp.inventory.models import GpuPool, Node
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
    said = list(Run.objects.order_by("pk").values_list("waits_for", flat=True))
    assert said[0] == "Waits for 4 GPUs in west, 0 are idle: 4 do not answer"
    assert said[49] == f"{said[0]}; 49 ahead in the queue"
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


def test_the_two_ways_to_say_that_a_node_may_be_given_work_agree(world: World) -> None:
    now, site = timezone.now(), series()
    variants: list[dict[str, Any]] = [
        {},
        {"last_seen": None},
        {"last_seen": now - timedelta(hours=1)},
        {"draining_since": now},
        {"acl_sha256": ""},
        {"version": ""},
        {"version": site},
        {"version": f"{site}.9"},
        {"version": f"{site}9.1"},
        {"version": "9.9.9"},
    ]
    for i, fields in enumerate(variants):
        known = {"last_seen": now, "acl_sha256": "0" * 64, "version": f"{site}.0", **fields}
        dc = world.dcs[i % 3]
        Node.objects.create(dc=dc, pool=dc.pools.get(), name=f"n{i}", gpus=1, **known)
    type(world.dcs[0]).objects.filter(pk=world.dcs[2].pk).update(draining_since=now)
    placeable = set(Node.objects.placeable())
    assert {node for node in Node.objects.all() if node.is_placeable} == placeable
    assert 0 < len(placeable) < len(variants)
