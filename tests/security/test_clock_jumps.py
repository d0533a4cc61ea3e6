"""Clocks of the site, of its broker and of nodes are an hour off: no run fails, and a silent node is seen."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone
from redis.asyncio import Redis as AsyncRedis

from engine import __version__
from tests.events import event
from tests.site.telemetry import take_in
from tests.site.world import make_world
from webapp.beat import Scheduler
from webapp.celery import app
from webapp.computations import liveness
from webapp.inventory import services
from webapp.inventory.models import Node, NodeState, silence
from webapp.jobs.models import Run, Status
from webapp.jobs.reconcile import reconcile
from webapp.live.ingest import Ingest

HOUR = timedelta(hours=1)
LATE = timedelta(minutes=5)
Jump = Callable[[timedelta], datetime]


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Set the site's clock forward or back; returns what it shows then."""
    now, ahead = timezone.now, timedelta(0)

    def by(step: timedelta) -> datetime:
        nonlocal ahead
        ahead += step
        return timezone.now()

    monkeypatch.setattr(timezone, "now", lambda: now() + ahead)
    return by


def hear(world: Any, run: Run, *, but: int = 0) -> None:
    """A heartbeat of each node that names its ranks; the first `but` nodes say nothing."""
    for node in world.nodes[but:]:
        ranks = [
            {
                "run": str(run.pk),
                "generation": run.generation,
                "rank": rank.rank,
                "pid": 1,
                "state": "running",
            }
            for rank in run.ranks.filter(node=node)
        ]
        beat = event("heartbeat", version=__version__, gpus=node.gpus, device=node.device, ranks=ranks)
        services.record_heartbeat(node.name, timezone.now(), beat)


@pytest.fixture
def run(world: Any) -> Run:
    """A run that trains, on nodes that are heard."""
    launch: Run = world.launch()
    world.hear()
    started = timezone.now() - timedelta(minutes=10)
    launch.ranks.update(state="running", state_since=started, dispatched_at=started)
    Run.objects.filter(pk=launch.pk).update(status=Status.RUNNING, status_since=started, started_at=started)
    hear(world, launch)
    return launch


def look(run: Run) -> Run:
    """The reconciler looks, as every two seconds."""
    reconcile(lambda *_: None)
    run.refresh_from_db()
    return run


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_run_outlives_a_jump_of_the_clock(world: Any, run: Run, jump: Jump, step: timedelta) -> None:
    assert look(run).status == Status.RUNNING
    jump(step)
    assert look(run).status == Status.RUNNING, "nobody has been heard by the new clock"
    liveness.beat()
    assert look(run).status == Status.RUNNING
    hear(world, run)
    for node in Node.objects.all():
        assert node.state == NodeState.ONLINE
        assert node.last_seen is not None
        assert abs(timezone.now() - node.last_seen) < LATE, "it is of the new clock"
    jump(timedelta(seconds=30))
    hear(world, run)
    liveness.beat()
    assert look(run).status == Status.RUNNING


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_node_that_is_gone_is_noticed_after_a_jump(
    world: Any, run: Run, jump: Jump, step: timedelta
) -> None:
    jump(step)
    liveness.beat()
    for _ in range(6):
        jump(timedelta(seconds=4))
        liveness.beat()
        hear(world, run, but=1)
    since = liveness.listening_since()
    assert since is not None
    assert timezone.now() - since > silence(), "nodes have been listened to for long enough to judge them"
    gone = world.nodes[0].name
    assert list(Node.objects.in_state(NodeState.SILENT).values_list("name", flat=True)) == [gone]
    assert {node.name for node in Node.objects.online()} == {node.name for node in world.nodes[1:]}
    assert Node.objects.get(name=gone).state == NodeState.SILENT


def test_a_clock_that_is_set_back_does_not_stop_the_beat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ahead, real = timedelta(0), app.now
    monkeypatch.setattr(app, "now", lambda: real() + ahead)
    scheduler = Scheduler(app, schedule_filename=str(tmp_path / "beat"))
    sent: list[str] = []
    monkeypatch.setattr(scheduler, "apply_async", lambda entry, **_: sent.append(entry.name))
    often = {name for name, entry in app.conf.beat_schedule.items() if entry["schedule"] <= 60}
    assert {"reconcile", "retention"} <= often

    def after_a_minute() -> set[str]:
        """What is sent within some ticks, a minute later."""
        nonlocal ahead
        ahead += timedelta(minutes=1)
        sent.clear()
        for _ in range(3 * len(often)):
            scheduler.tick()
        return set(sent)

    assert after_a_minute() >= often
    ahead -= HOUR
    scheduler.tick()
    assert after_a_minute() >= often
    ahead += HOUR
    assert after_a_minute() >= often
    ahead -= HOUR
    scheduler.close()
    scheduler = Scheduler(app, schedule_filename=str(tmp_path / "beat"))  # as after a restart
    monkeypatch.setattr(scheduler, "apply_async", lambda entry, **_: sent.append(entry.name))
    scheduler.tick()
    assert after_a_minute() >= often
    scheduler.close()


@pytest.fixture
def starting(world: Any) -> Run:
    """A run whose nodes were told to start their ranks, and have not answered yet."""
    launch: Run = world.launch()
    world.hear()
    liveness.beat()
    assert look(launch).status == Status.STARTING
    return launch


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_run_that_starts_outlives_a_jump_of_the_clock(
    world: Any, starting: Run, jump: Jump, step: timedelta
) -> None:
    jump(step)
    assert look(starting).status == Status.STARTING
    liveness.beat()
    hear(world, starting)
    assert look(starting).status == Status.STARTING


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_nodes_are_told_again_and_a_start_ends_in_time_after_a_jump(
    world: Any, starting: Run, jump: Jump, step: timedelta, settings: Any
) -> None:
    jump(step)
    liveness.beat()
    nodes: list[str] = []
    jump(timedelta(seconds=settings.DISPATCH_AGAIN_AFTER_S + 1))
    liveness.beat(anew=True)
    hear(world, starting)
    reconcile(lambda node, *_: nodes.append(node))
    assert set(nodes) == {node.name for node in world.nodes}
    for _ in range(int(settings.START_TIMEOUT_S / 4) + 2):
        jump(timedelta(seconds=4))
        liveness.beat()
        hear(world, starting)
    assert look(starting).status == Status.FAILED
    assert starting.status_reason.startswith("Did not start within")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_broker_whose_clock_is_off_makes_no_node_silent(step: timedelta, settings: Any) -> None:
    world = await sync_to_async(make_world)()
    name, stream = world.nodes[0].name, f"node:{world.nodes[0].name}:events"
    beat = event("heartbeat", version=__version__, gpus=2, device="emulated", ranks=[])
    async with AsyncRedis.from_url(settings.VALKEY_URL, decode_responses=True) as client:
        await client.delete(stream)

        async def its_time() -> tuple[int, int]:
            return int(time.time() + step.total_seconds()), 0

        with patch.object(client, "time", its_time):
            ingest = Ingest(client)
            received = int((time.time() + step.total_seconds()) * 1e3)
            await client.xadd(stream, {"e": beat.to_json()}, id=f"{received}-1")
            while not await ingest.round():
                pass
        await client.delete(stream)
    node = await Node.objects.aget(name=name)
    assert node.state == NodeState.ONLINE
    assert node.last_seen is not None
    assert abs(timezone.now() - node.last_seen) < LATE


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_node_whose_clock_is_off_is_heard_as_any_other(world: Any, run: Run, step: timedelta) -> None:
    its_now = (timezone.now() + step).timestamp()
    for rank in run.ranks.all():
        ready = event("rank", run=str(run.pk), generation=run.generation, rank=rank.rank, state="running")
        take_in([(rank.node.name, "0-1", {**ready.to_dict(), "t": its_now})])
    hear(world, run)
    liveness.beat()
    assert look(run).status == Status.RUNNING
    assert {node.state for node in Node.objects.all()} == {NodeState.ONLINE}
    assert all(rank.state_since <= timezone.now() for rank in run.ranks.all())
