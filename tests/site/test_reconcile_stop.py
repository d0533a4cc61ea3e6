"""A stop ends within 5 s in every state, and a reconciler that was cut off anywhere goes on."""

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as site_settings
from django.utils import timezone

from tests.site.telemetry import placed
from tests.site.test_reconcile import Nodes, report, running, seen
from tests.site.world import World
from webapp.accounts.models import AuditEntry
from webapp.common import broker
from webapp.inventory.dispatch import BrokerDown
from webapp.inventory.models import Node
from webapp.jobs import services
from webapp.jobs.models import RankState, RankStatus, Run, RunEvent, Status
from webapp.jobs.reconcile import reconcile

HEARD_S, KILLED_S = site_settings.STOP_LOOK_AGAIN_S
GRACE_AND_REPORT_S = 1.0  # between the kill on a node and the next look at it


@pytest.fixture(autouse=True)
def patience(settings: Any) -> None:
    """A busy machine may take seconds between two lines of a test; who is silent here is so for a minute."""
    settings.NODE_SILENT_AFTER_S = 45


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def cancel(world: World, run: Run) -> Run:
    """Stop `run` and return it as a page would read it right after."""
    services.cancel_run(world.users["operator"], run)
    run.refresh_from_db()
    return run


def later(run: Run, seconds: float) -> None:
    """Let `seconds` pass since the stop, as far as the reconciler can tell."""
    Run.objects.filter(pk=run.pk).update(status_since=timezone.now() - timedelta(seconds=seconds))


def silent(*nodes: Node) -> None:
    past = timezone.now() - timedelta(seconds=60)
    Node.objects.filter(pk__in=[node.pk for node in nodes]).update(last_seen=past)


def test_the_times_of_a_stop_leave_room_within_five_seconds() -> None:
    assert site_settings.STOP_GRACE_S < KILLED_S
    assert 2 < HEARD_S < KILLED_S, "heartbeats come every 2 s"
    assert KILLED_S + GRACE_AND_REPORT_S <= 5


def test_a_queued_run_is_over_at_once(world: World, nodes: Nodes) -> None:
    run = cancel(world, world.launch())
    assert run.status == Status.CANCELLED
    reconcile(nodes)
    assert nodes.take() == []


def test_before_its_dispatch_a_starting_run_ends_in_the_next_round(world: World, nodes: Nodes) -> None:
    run = cancel(world, placed(world))
    assert run.status == Status.STOPPING
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.CANCELLED
    assert nodes.take() == []
    assert not RankState.objects.exclude(state=RankStatus.STOPPED).exists(), "its GPUs are free"


def test_after_its_dispatch_a_starting_run_ends_when_its_nodes_refuse_the_start(
    world: World, nodes: Nodes
) -> None:
    run = placed(world)
    reconcile(nodes)
    nodes.take()
    cancel(world, run)
    reconcile(nodes)
    assert nodes.take() == [(f"{name}-1", "stop_ranks") for name in ("east", "mid", "west")]
    report(run, "stopped", detail="refused: stopped before it came")
    run.refresh_from_db()
    assert run.status == Status.CANCELLED


def test_a_running_run_waits_for_its_ranks_but_not_for_ever(world: World, nodes: Nodes) -> None:
    run = cancel(world, running(world, nodes))
    later(run, HEARD_S)
    world.hear(ranks=seen(run))
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.STOPPING, "its nodes live: their ranks are about to end"
    later(run, KILLED_S)
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.CANCELLED
    assert "12 GPUs" in run.status_reason
    assert RankState.objects.filter(run=run, state=RankStatus.RUNNING).count() == 12, "and are still taken"
    nodes.take()
    reconcile(nodes)
    assert {node for node, task in nodes.take() if task == "stop_ranks"} == {"east-1", "mid-1", "west-1"}
    report(run, "stopped")
    reconcile(nodes)
    assert not RankState.objects.exclude(state=RankStatus.STOPPED).exists()


def test_a_dead_agent_does_not_keep_a_stopped_run_open(world: World, nodes: Nodes) -> None:
    run = cancel(world, running(world, nodes))
    silent(world.nodes[1])
    report(run, "stopped", range(0, 2))
    report(run, "stopped", range(4, 8))
    report(run, "stopped", range(10, 12))
    later(run, HEARD_S)
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.CANCELLED
    assert "4 GPUs of mid-1" in run.status_reason
    assert RunEvent.objects.filter(run=run, level="warn", text__contains="mid-1").exists()
    held = RankState.objects.filter(run=run).exclude(state=RankStatus.STOPPED)
    assert {rank.node.name for rank in held} == {"mid-1"}
    world.hear(world.nodes[1])  # its agent is back and knows of no rank
    Run.objects.update(finished_at=timezone.now() - timedelta(seconds=20))
    reconcile(nodes)
    assert not held.all().exists()


def test_a_node_that_never_comes_back_gives_its_gpus_free_in_the_end(world: World, nodes: Nodes) -> None:
    run = cancel(world, running(world, nodes))
    silent(*world.nodes)
    later(run, HEARD_S)
    reconcile(nodes)
    Run.objects.update(finished_at=timezone.now() - timedelta(minutes=5))
    reconcile(nodes)
    assert set(run.ranks.values_list("state", flat=True)) == {RankStatus.STOPPED}


def test_without_a_broker_the_stop_is_noted_and_said(
    world: World, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = running(world, nodes)
    away = broker.Health(ok=False, text="The broker does not answer.")
    monkeypatch.setattr(broker, "health", lambda **kwargs: away)
    run = cancel(world, run)
    assert (run.status, run.can_cancel) == (Status.STOPPING, False)
    assert "broker" in run.waits_for
    nodes.down = True
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.STOPPING
    nodes.down = False
    later(run, 0)
    reconcile(nodes)
    assert len(nodes.take()) == 3, "told once it is back"


def test_a_second_stop_changes_nothing(world: World, nodes: Nodes) -> None:
    run = cancel(world, running(world, nodes))
    rows = AuditEntry.objects.count()
    cancel(world, run)
    assert AuditEntry.objects.count() == rows


class Cut(Nodes):
    """Dies after so many sends, as a reconciler that is killed in the middle."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def __call__(self, node_name: str, task: str, kwargs: Any) -> str:
        if len(self.sent) >= self.after:
            raise BrokerDown(node_name, "cut off")
        return super().__call__(node_name, task, kwargs)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_start_that_was_cut_off_goes_on_where_it_was(world: World, nodes: Nodes, after: int) -> None:
    placed(world)
    cut = Cut(after)
    reconcile(cut)
    reconcile(nodes)
    calls = cut.take() + nodes.take()
    assert sorted(calls) == [(f"{name}-1", "start_ranks") for name in ("east", "mid", "west")]


def test_what_stopped_is_never_started_again(world: World, nodes: Nodes) -> None:
    run = cancel(world, running(world, nodes))
    report(run, "stopped")
    for _ in range(3):
        reconcile(nodes)
    assert "start_ranks" not in {task for _, task in nodes.take()}


def test_every_transition_is_in_the_audit_with_before_and_after(world: World, nodes: Nodes) -> None:
    run = cancel(world, running(world, nodes))
    report(run, "stopped")
    rows = AuditEntry.objects.filter(object_type="run", object_id=str(run.pk)).order_by("pk")
    moves = [(row.before or {}, row.after or {}) for row in rows if row.after and "status" in row.after]
    walked = [(before["status"], after["status"]) for before, after in moves]
    assert walked == [
        ("queued", "starting"),
        ("starting", "running"),
        ("running", "stopping"),
        ("stopping", "cancelled"),
    ]


def test_what_needs_somebody_is_told_apart_from_what_takes_time(world: World, nodes: Nodes) -> None:
    from webapp.overview import context

    running(world, nodes)
    second = world.launch()
    reconcile(nodes)
    second.refresh_from_db()
    assert second.waits_for == "Waits for 4 GPUs in east, 0 are idle"
    assert not second.needs_action
    silent(world.nodes[2])
    third = world.launch()
    reconcile(nodes)
    third.refresh_from_db()
    assert third.waits_for == "Waits for 4 GPUs in west, 0 are idle: 4 do not answer; 1 ahead in the queue"
    assert third.needs_action

    def attention() -> list[str]:
        return [
            row["level"] for row in context(world.users["viewer"])["attention"] if "waits" in row["title"]
        ]

    assert attention() == ["warn", "warn"]
    later(third, site_settings.PENDING_ALARM_MIN * 60 + 1)
    assert attention() == ["error", "warn"]
