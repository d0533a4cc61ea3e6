"""Draining: no more work, runs that end together after an iteration, and go on elsewhere."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.site.test_reconcile import Nodes, report, running
from tests.site.world import make_node
from webapp.accounts.models import AuditEntry
from webapp.inventory import services
from webapp.inventory.models import DataCenter, Node
from webapp.jobs import services as jobs
from webapp.jobs.models import Run, Status
from webapp.jobs.reconcile import reconcile, spec_of
from webapp.jobs.selectors import runs_on


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.mark.parametrize(
    ("ok", "changes"),
    [
        (True, {}),
        (False, {"draining_since": timezone.now()}),
        (False, {"acl_sha256": ""}),
        (False, {"last_seen": timezone.now() - timedelta(minutes=5)}),
        (False, {"last_seen": None}),
        (False, {"version": "99.0.1"}),
        (True, {"version": "0.1.99"}),
        (False, {"version": "0.10.0"}),
    ],
)
def test_who_may_be_given_work(world: Any, ok: bool, changes: dict[str, Any]) -> None:
    world.hear()
    node = world.nodes[0]
    Node.objects.filter(pk=node.pk).update(**changes)
    assert Node.objects.get(pk=node.pk).is_placeable is ok


def test_a_draining_data_centre_takes_its_nodes_along(world: Any) -> None:
    world.hear()
    services.drain(world.users["operator"], world.dcs[0])
    assert {node for node in Node.objects.all() if node.is_placeable} == set(world.nodes[1:])
    services.resume(world.users["operator"], DataCenter.objects.get(pk=world.dcs[0].pk))
    assert all(node.is_placeable for node in Node.objects.all())
    verbs = AuditEntry.objects.filter(object_type="datacenter").values_list("verb", flat=True)
    assert {"drain", "resume"} <= set(verbs)


def test_a_drained_node_gets_no_new_run_and_the_wait_says_so(world: Any, nodes: Nodes) -> None:
    world.hear()
    services.drain(world.users["operator"], world.nodes[2])
    run = world.launch()
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.QUEUED
    assert "4 on nodes that drain" in run.waits_for
    assert run.needs_action


def drained(world: Any, nodes: Nodes, how: str) -> Run:
    run = running(world, nodes)
    client = world.client("operator")
    page = client.get(f"/nodes/{world.nodes[1].pk}/drain/")
    assert "Without checkpoints" in page.content.decode()
    assert "start again elsewhere, from their last checkpoint if there is one" in page.content.decode()
    assert page.context["runs"] == [run]
    assert client.post(f"/nodes/{world.nodes[1].pk}/drain/", {"runs": how}).status_code == 302
    run.refresh_from_db()
    return run


def test_runs_may_go_on_to_their_end(world: Any, nodes: Nodes) -> None:
    run = drained(world, nodes, "finish")
    reconcile(nodes)
    assert (run.status, run.boundary_why) == (Status.RUNNING, "")
    assert nodes.take() == []


def test_a_run_ends_after_the_iteration_that_rank_0_names_and_moves(world: Any, nodes: Nodes) -> None:
    run = drained(world, nodes, "move")
    reconcile(nodes)
    ((name, task, kwargs),) = nodes.sent
    assert (name, task, kwargs["boundary"]) == ("east-1", "stop_ranks", True), "rank 0's node alone is asked"
    reconcile(nodes)
    assert len(nodes.sent) == 2, "asked again until rank 0 has answered: a task may be lost"
    jobs.record_progress(run, iteration=6)
    jobs.record_boundary(run, 7)
    jobs.record_boundary(run, 9)
    nodes.take()
    reconcile(nodes)
    assert nodes.take() == []
    page = world.client("viewer").get(f"/nodes/{world.nodes[1].pk}/").content.decode()
    assert "end after iteration 8; the job then starts again elsewhere" in " ".join(page.split())
    jobs.record_progress(run, iteration=7)
    jobs.record_result(run, {"steps": 8, "params_sha256": "ab"})
    report(run, "finished")
    run.refresh_from_db()
    assert run.status == Status.CANCELLED
    assert run.status_reason == "Ended after iteration 8 of 50: mid-1 is draining."
    assert run.result["params_sha256"] == "ab"
    moved = Run.objects.get(job=run.job, generation=run.generation + 1)
    assert moved.status == Status.QUEUED
    spare = make_node(world.dcs[1], "mid-2", gpus=4, device="emulated", acl_sha256="0" * 64)
    world.hear()
    world.hear(spare)
    reconcile(nodes)
    assert set(moved.ranks.values_list("node__name", flat=True)) == {"east-1", "mid-2", "west-1"}


def test_a_run_may_stay_stopped(world: Any, nodes: Nodes) -> None:
    run = drained(world, nodes, "stop")
    jobs.record_boundary(run, 3)
    report(run, "finished")
    run.refresh_from_db()
    assert run.status == Status.CANCELLED
    assert Run.objects.filter(job=run.job).count() == 1


def test_a_run_whose_last_iteration_it_was_has_succeeded(world: Any, nodes: Nodes) -> None:
    run = drained(world, nodes, "move")
    jobs.record_boundary(run, run.steps - 1)
    report(run, "finished")
    run.refresh_from_db()
    assert run.status == Status.SUCCEEDED
    assert Run.objects.filter(job=run.job).count() == 1


def test_a_run_that_fails_on_its_way_moves_all_the_same(world: Any, nodes: Nodes) -> None:
    run = drained(world, nodes, "move")
    report(run, "failed", range(5, 6), exit_code=1, detail="killed")
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert Run.objects.filter(job=run.job, status=Status.QUEUED).count() == 1
    jobs.fail_run(run, "again")
    assert Run.objects.filter(job=run.job).count() == 2, "once"


def test_stopping_by_hand_ends_the_move(world: Any, nodes: Nodes) -> None:
    run = drained(world, nodes, "move")
    assert run.can_cancel
    jobs.cancel_run(world.users["operator"], run)
    report(run, "stopped")
    run.refresh_from_db()
    assert run.status == Status.CANCELLED
    assert Run.objects.filter(job=run.job).count() == 1


def test_a_run_that_has_not_begun_moves_at_once(world: Any, nodes: Nodes) -> None:
    world.hear()
    run = world.launch()
    reconcile(nodes)
    assert services.drain(world.users["operator"], world.nodes[0], "move") == 1
    run.refresh_from_db()
    assert run.status == Status.STOPPING
    assert Run.objects.filter(job=run.job, status=Status.QUEUED).count() == 1
    assert services.drain(world.users["operator"], world.nodes[0], "move") == 0


def test_a_spec_carries_the_ports_of_its_node(world: Any, nodes: Nodes) -> None:
    Node.objects.filter(name="east-1").update(port_from=21000, port_to=21099)
    run = running(world, nodes)
    spec = spec_of(run, Node.objects.get(name="east-1"))
    assert spec.ports == (21000, 21049)
    assert 21050 <= spec.rendezvous_port <= 21098
    assert spec_of(run, Node.objects.get(name="mid-1")).ports == (29500, 29549)
    assert list(runs_on(world.dcs[0])) == [run]
