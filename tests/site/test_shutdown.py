"""What a run says that ended because its agents were shut down: Ctrl-C is no failure."""

import json
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone
from redis.asyncio import Redis

from engine.job.launch import EXIT_PEER_LOST
from tests.events import T0
from tests.site.test_reconcile import Nodes, report, running
from tests.site.world import World, make_world
from webapp.accounts.models import AuditEntry
from webapp.jobs import services
from webapp.jobs.models import Desired, RankState, Run, Status
from webapp.jobs.reconcile import reconcile
from webapp.live.ingest import Ingest, stream_of


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_agents_that_are_shut_down_stop_their_run_and_it_says_so(world: World, nodes: Nodes) -> None:
    run = running(world, nodes)
    Run.objects.filter(pk=run.pk).update(iteration=41)
    report(run, "stopped", range(11), exit_code=-15)
    run.refresh_from_db()
    assert run.status == Status.RUNNING, "one rank has not said that it ended"
    report(run, "stopped", range(11, 12), exit_code=0)
    run.refresh_from_db()
    assert (run.status, run.desired_state) == (Status.CANCELLED, Desired.CANCELLED)
    assert run.status_reason == (
        "Stopped after iteration 42 of 50: the agents of its 3 nodes were shut down, and its ranks with them."
    )
    assert run.finished_at
    assert "The agents of its 3 nodes were shut down" in run.events.latest("seq").text
    entry = AuditEntry.objects.filter(object_type="run", object_id=str(run.pk)).latest("pk")
    assert (entry.verb, entry.actor) == ("end", None)
    reconcile(nodes)
    assert services.retry_run(world.users["operator"], run).generation == 2


def test_a_part_of_its_agents_shut_down_fails_the_run(world: World, nodes: Nodes) -> None:
    """Nobody meant to end the run: somebody took a node away from it."""
    run = running(world, nodes)
    on_east = [rank.rank for rank in RankState.objects.filter(run=run, node=world.nodes[0])]
    for rank in range(12):
        state = ("stopped", -15) if rank in on_east else ("failed", EXIT_PEER_LOST)
        report(run, state[0], range(rank, rank + 1), exit_code=state[1])
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert (
        run.status_reason
        == f"The agent of {world.nodes[0]} was shut down, so the ranks on other nodes lost their peers."
    )


def test_ranks_that_only_lost_each_other_were_not_shut_down(world: World, nodes: Nodes) -> None:
    """A link between data centres broke: on every node one rank said so, and its host ended the others."""
    run = running(world, nodes)
    for node in world.nodes:
        first, *others = [rank.rank for rank in RankState.objects.filter(run=run, node=node)]
        report(run, "failed", [first], exit_code=EXIT_PEER_LOST)
        for rank in others:
            report(run, "stopped", [rank], exit_code=-15)
    run.refresh_from_db()
    assert run.status == Status.RUNNING, "a cause may still be heard of"
    RankState.objects.update(state_since=timezone.now() - timedelta(seconds=60))
    reconcile(nodes)
    run.refresh_from_db()
    assert (run.status, "shut down" in run.status_reason) == (Status.FAILED, False)


def test_after_a_crash_what_had_ranks_failed_and_what_waits_goes_on_waiting(
    world: World, nodes: Nodes
) -> None:
    trained, waits = running(world, nodes), world.launch()
    assert services.forget_stopped_work("Down.") == [trained]
    trained.refresh_from_db()
    waits.refresh_from_db()
    assert (trained.status, trained.status_reason, waits.status) == (Status.FAILED, "Down.", Status.QUEUED)


@pytest.mark.django_db(transaction=True)
async def test_an_ingest_that_is_stopped_takes_in_what_was_said_before() -> None:
    """The agents are stopped first: their last words are in the streams when the stop comes."""

    def trains() -> tuple[World, Run]:
        world = make_world()
        return world, running(world, Nodes())

    world, run = await sync_to_async(trains)()
    client = Redis.from_url(settings.VALKEY_URL, decode_responses=True)
    ingest = Ingest(client)
    while await ingest.round():
        pass
    ranks: list[Any] = await sync_to_async(lambda: list(run.ranks.select_related("node")))()
    for rank in ranks:
        event = {
            "kind": "rank",
            "run": str(run.pk),
            "generation": 1,
            "rank": rank.rank,
            "state": "stopped",
            "t": T0,
        }
        await client.xadd(stream_of(rank.node.name), {"e": json.dumps(event)})
    ingest.stop.set()
    await ingest.run()
    await run.arefresh_from_db()
    assert run.status == Status.CANCELLED
    await client.delete(*(stream_of(node.name) for node in world.nodes))
    await client.aclose()
