"""From the nodes' streams to the database and the browser, over a real Valkey, with everything sent twice."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis import Redis

from engine.job.events.event import KINDS
from tests.site.telemetry import events, read, spans_event, take_in
from tests.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(world: Any) -> Any:
    return placed(world)


def placed(world: Any) -> Any:
    from webapp.jobs.allocate import allocate

    world.hear()
    run = world.launch()
    assert allocate(run)
    return run


def state(run: Any) -> Any:
    from webapp.live.models import IterationStat, SpanBatch

    fields = ("iteration", "start", "end", "loss", "ranks", "busy_s", "traffic", "utilization")
    return list(IterationStat.objects.filter(run=run).values_list(*fields)), SpanBatch.objects.filter(
        run=run
    ).count()


def test_duplicates_change_nothing(run: Any) -> None:
    from webapp.live.selectors import snapshot

    all_events = events(run, 3)
    take_in(all_events[:20])
    take_in(all_events[10:])
    once = state(run)
    assert once[1] == 36
    assert [row[4] for row in once[0]] == [12, 12, 12]
    take_in(all_events + all_events)
    assert state(run) == once
    usage = snapshot(run.pk)["usage"]
    assert usage["run"]["utilization"] == 0.5
    assert usage["lanes"][0] == [0.5, 0.0]
    link = usage["links"][0]
    # 5 MB in 20 ms over both pairs of the cell at once: 1 Gbit/s a pair; two a second, at once
    assert (link["gbps"], link["busy"], link["mean_gbps"]) == (1.0, 0.02, 0.08)
    assert link["latency_ms"] == pytest.approx(10)


def test_a_node_speaks_for_its_own_ranks_and_generation_only(run: Any) -> None:

    foreign = [("west-1", "1-0", spans_event(run, 0, 0))]
    old = [("east-1", "1-0", {**spans_event(run, 0, 0), "generation": 7})]
    broken = [("east-1", "1-0", {**spans_event(run, 0, 0), "spans": [{"track": "gpu"}]})]
    odd = [("east-1", "1-0", {"kind": "rank", "run": [], "rank": {}}), ("east-1", "1-0", {})]
    take_in(foreign + old + broken + odd)
    assert state(run) == ([], 0)


def test_a_run_whose_first_rank_is_not_heard_progresses_by_what_others_end(run: Any) -> None:
    """The agent of its node hangs: an iteration that any other rank has ended needed all of them."""
    take_in([("mid-1", "1-0", spans_event(run, 2, 4))])
    run.refresh_from_db()
    first = run.progressed_at
    assert first is not None
    take_in([("mid-1", "2-0", spans_event(run, 2, 4))])  # the same again is no progress
    run.refresh_from_db()
    assert (run.progressed_at, run.iteration) == (first, -1)
    take_in([("mid-1", "3-0", spans_event(run, 3, 4))])
    run.refresh_from_db()
    assert run.progressed_at > first


def test_messages_are_numbered_without_gaps_and_add_up_to_the_snapshot(run: Any) -> None:
    from webapp.live.selectors import snapshot

    seen: list[dict[str, Any]] = []
    all_events = events(run, 4)
    for i in range(0, len(all_events), 7):
        seen += [message for _, message in take_in(all_events[i : i + 7], {run.pk})]
    whole = snapshot(run.pk)
    assert [message["seq"] for message in seen] == list(range(1, whole["seq"] + 1))
    iterations = {entry["iteration"]: entry for message in seen for entry in message["iterations"]}
    assert list(iterations.values()) == whole["iterations"]
    deltas = [(e["iteration"], e["rank"], e["spans"]) for message in seen for e in message["spans"]]
    assert sorted(deltas) == [(e["iteration"], e["rank"], e["spans"]) for e in whole["spans"]]


def test_a_message_reads_no_document_of_its_run(run: Any) -> None:
    from webapp.jobs.models import Run

    Run.objects.filter(pk=run.pk).update(predicted={"utilization": 0.25, "spans": [[0]]})
    with CaptureQueriesContext(connection) as queries:
        ((_, message),) = take_in(events(run, 2))
    assert message["usage"]["run"]["predicted"] == 0.25
    columns = ('"jobs_run"."predicted",', '"jobs_run"."result",', '"jobs_job"."plan_copy"')
    reads = [query["sql"] for query in queries if query["sql"].startswith("SELECT")]
    assert not [sql for sql in reads for column in columns if column in sql]


@pytest.mark.parametrize(
    "poison",
    [
        {"kind": "step", "iteration": 2**70, "loss": 1.0},
        {"kind": "log", "rank": 0, "line": "a line with NUL \x00 in it"},
        {"kind": "log", "rank": 0, "line": "half a surrogate \ud800"},
        {"kind": "rank", "rank": 0, "state": "failed", "detail": "\x00", "exit_code": 2**40, "pid": 2**70},
        {"kind": "step", "run": math.inf, "iteration": 1, "loss": 1.0},
        {"kind": "step", "iteration": math.inf, "loss": 1.0},
        {"kind": "spans", "iteration": 1, "start": 1.0, "end": 2.0, "spans": []},
        {"kind": "spans", "rank": [0], "iteration": 1, "start": 1.0, "end": 2.0, "spans": [5]},
        {"kind": "probe", "probe": "p", "results": 5},
        {"kind": ["rank"], "rank": {}, "state": []},
        {"kind": "rank", "rank": 0, "state": ["running"]},
        {"kind": "boundary", "rank": 0, "iteration": 1e400},
        {"kind": "checkpoint", "rank": 0, "step": 1e400},
        {"kind": "validation", "rank": 0, "iteration": 1e400, "loss": []},
        {"kind": "result", "rank": 0, "losses": {"a": 1}},
        {"kind": "heartbeat", "gpus": [], "ranks": [{"run": [], "generation": []}], "clock": 7},
    ],
)
def test_what_the_database_refuses_is_left_out_alone(run: Any, poison: dict[str, Any]) -> None:
    from webapp.live.ingest import take_in_or_refuse

    def send(items: list[Any]) -> None:
        take_in_or_refuse(read(items), set())

    sound = events(run, 2)
    bad = ("east-1", "1-0", {"run": str(run.pk), "generation": run.generation, **poison})
    send([*sound[:7], bad, *sound[7:]])
    with_poison = state(run)
    send(sound)
    assert with_poison == state(run)


def test_retention_keeps_the_last_iterations_and_all_rollups(run: Any) -> None:
    from webapp.live.services import forget_old_spans

    take_in(events(run, 6))
    forget_old_spans(2)
    stats, batches = state(run)
    assert len(stats) == 6
    assert batches == 2 * 12


# Entries that are no events: what comes after them is taken in all the same.
MALFORMED = [json.dumps({"kind": kind, "run": "1", "generation": 1, "rank": 0}).encode() for kind in KINDS]
GARBAGE = (*MALFORMED, b"\xff\xfe", b"[" * 100_000, b"{", b"5", b"1" * 5000, b'{"kind": 1e999}', b"")


@pytest.mark.django_db(transaction=True)
def test_a_killed_ingest_loses_nothing_and_takes_in_no_garbage() -> None:
    from tests.site.world import make_world
    from webapp.live.models import SpanBatch

    run = placed(make_world())
    client = Redis.from_url(settings.VALKEY_URL)
    type(run).objects.filter(pk=run.pk).update(steps=150)
    sent = events(run, 150)
    client.delete("control:site")  # claimed by the site of another test
    environment = {**os.environ, "DATABASE_URL": url_of_test_database()}
    command = [sys.executable, "manage.py", "ingest"]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=ROOT, env=environment)

    for entry in GARBAGE:
        client.xadd("node:east-1:events", {"e": entry})
    client.xadd("node:east-1:events", {"other": "field"})
    ingest = start()
    try:
        for i, (node, _, event) in enumerate(sent):
            client.xadd(f"node:{node}:events", {"e": json.dumps(event)})
            if i == len(sent) // 2:
                until(lambda: SpanBatch.objects.exists())
                ingest.send_signal(signal.SIGKILL)
                ingest.wait()
        ingest = start()
        until(lambda: SpanBatch.objects.count() == 150 * 12)
        until(lambda: not any(client.xlen(f"node:{n}-1:events") for n in ("east", "mid", "west")))
    finally:
        ingest.terminate()
        assert ingest.wait(LIMIT_S) == 0
        client.delete(*[f"node:{n}-1:events" for n in ("east", "mid", "west")])
        client.close()


def url_of_test_database() -> str:
    values = connection.settings_dict
    return f"postgresql://{values['USER']}:{values['PASSWORD']}@{values['HOST']}:{values['PORT']}/{values['NAME']}"


@pytest.mark.django_db(transaction=True)
async def test_a_browser_gets_a_snapshot_then_events_and_a_stranger_nothing() -> None:
    from asgiref.sync import sync_to_async
    from channels.layers import get_channel_layer

    from tests.site.world import make_world
    from webapp.live.consumers import NOT_FOUND, RunConsumer
    from webapp.live.ingest import group_of

    world = await sync_to_async(make_world)()
    run = await sync_to_async(placed)(world)

    def socket(name: str) -> ApplicationCommunicator:
        route = {"kwargs": {"run_id": run.pk}}
        scope = {"type": "websocket", "user": world.users[name], "url_route": route}
        return ApplicationCommunicator(RunConsumer.as_asgi(), scope)

    async def connected(name: str) -> ApplicationCommunicator:
        link = socket(name)
        await link.send_input({"type": "websocket.connect"})
        assert (await link.receive_output(LIMIT_S))["type"] == "websocket.accept"
        return link

    async def heard(by: ApplicationCommunicator) -> dict[str, Any]:
        return json.loads((await by.receive_output(LIMIT_S))["text"])

    async def say(by: ApplicationCommunicator, text: str) -> None:
        await by.send_input({"type": "websocket.receive", "text": text})

    stranger = await connected("stranger")
    assert (await stranger.receive_output(LIMIT_S))["code"] == NOT_FOUND
    viewer = await connected("viewer")
    first = await heard(viewer)
    assert (first["type"], first["seq"], len(first["lanes"])) == ("snapshot", 0, 12)
    for _, message in await sync_to_async(take_in)(events(run, 1)):
        await get_channel_layer().group_send(group_of(run.pk), {"type": "run.events", "message": message})
    second = await heard(viewer)
    assert (second["type"], second["seq"], len(second["spans"])) == ("events", 1, 12)
    await say(viewer, "no json")
    await say(viewer, '{"type": "resync"}')
    third = await heard(viewer)
    assert (third["type"], third["seq"]) == ("snapshot", 1)
    await viewer.send_input({"type": "websocket.disconnect", "code": 1000})
    await viewer.wait(LIMIT_S)
