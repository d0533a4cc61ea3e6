"""A snapshot and what follows equal a fresh snapshot; who was away gets what it missed, or a snapshot."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.db import transaction
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from tests.site.telemetry import (
    NODES,
    events,
    log_event,
    placed,
    rank_event,
    spans_event,
    step_event,
    take_in,
)
from tests.site.world import World, make_world
from tests.waiting import LIMIT_S
from webapp.common import broker
from webapp.jobs import services as jobs
from webapp.jobs.allocate import allocate
from webapp.jobs.models import Run
from webapp.live import recent
from webapp.live.consumers import NOT_FOUND, RunConsumer
from webapp.live.selectors import messages_since, snapshot

Message = dict[str, Any]
RANK_STATES = ("starting", "ready", "running", "finished", "failed", "stopped")


@pytest.fixture
def run(world: World) -> Run:
    return placed(world)


def grow(known: Message, message: Message) -> None:
    """What the page does with a message (docs/dev/interfaces.md): replace by key, append."""
    assert message["seq"] == known["seq"] + 1
    known["seq"] = message["seq"]
    known["run"] |= message["run"]
    entries = {entry["iteration"]: entry for entry in known["iterations"]}
    entries |= {entry["iteration"]: entry for entry in message["iterations"]}
    known["iterations"] = [entries[i] for i in sorted(entries)]
    spans = {(e["iteration"], e["rank"]): e for e in known["spans"] + message["spans"]}
    known["spans"] = [spans[key] for key in sorted(spans)]
    marks = {mark["seq"]: mark for mark in known["marks"] + message["marks"]}
    known["marks"] = [marks[seq] for seq in sorted(marks)]
    for name in ("ranks", "usage", "epoch"):
        if name in message:
            known[name] = message[name]


COMPARED = ("seq", "epoch", "run", "iterations", "spans", "marks", "ranks", "usage")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("spans"), st.integers(0, 11), st.integers(0, 3)),
        st.tuples(st.just("step"), st.integers(0, 3), st.floats(0, 9)),
        st.tuples(st.just("rank"), st.integers(0, 11), st.sampled_from(RANK_STATES)),
        st.tuples(st.just("log"), st.integers(0, 11), st.integers(0, 99)),
        st.tuples(st.just("cancel"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 3), st.just(0)),
    ),
    max_size=30,
)


def item(run: Run, kind: str, a: Any, b: Any) -> tuple[str, str, Message]:
    builders = {
        "spans": lambda: (NODES[a], spans_event(run, a, b)),
        "step": lambda: ("east-1", step_event(run, a, loss=b)),
        "rank": lambda: (NODES[a], rank_event(run, a, b, detail=f"{b}!", exit_code=1)),
        "log": lambda: (NODES[a], log_event(run, a, b)),
    }
    node, event = builders[kind]()
    return node, "1-0", event


def happen(world: World, run: Run, batch: list[tuple[str, Any, Any]]) -> list[Message]:
    """Let a batch come in; returns the messages that the browsers of the run hear."""
    changed = set()
    for kind, a, _ in batch:
        if kind == "cancel":
            jobs.cancel_run(world.users["operator"], run)
        elif kind == "wait":
            jobs.wait_for(run, f"Waits for {a}")
        changed |= {run.pk} if kind in ("cancel", "wait") else set()
    messages = take_in([item(run, *each) for each in batch if each[0] not in ("cancel", "wait")], changed)
    return [message for _, message in messages]


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(story=steps, cut=st.integers(0, 30), size=st.integers(1, 8))
@rules(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_snapshot_and_all_that_follows_equal_a_fresh_snapshot(
    world: World, story: list[tuple[str, Any, Any]], cut: int, size: int
) -> None:
    with transaction.atomic():
        run = placed(world)
        for batch in pieces(story[:cut], size):
            happen(world, run, batch)
        known = as_json(snapshot(run.pk))
        for batch in pieces(story[cut:], size):
            for message in happen(world, run, batch):
                grow(known, as_json(message))
        for message in happen(world, run, [("step", 0, 1.0)]):  # log lines are told with what comes next
            grow(known, as_json(message))
        fresh = as_json(snapshot(run.pk))
        assert {name: known[name] for name in COMPARED} == {name: fresh[name] for name in COMPARED}
        transaction.set_rollback(True)


def test_what_a_rank_said_last_is_told_from_its_state_else_from_its_log(run: Run) -> None:
    """As the page writes it: else the first message after it was loaded would wipe it out."""
    take_in(
        [("east-1", "1-0", rank_event(run, 0, "running", detail="in step")), item(run, "log", 0, 0)], set()
    )
    [(_, message)] = take_in([item(run, "log", 1, 7), item(run, "step", 0, 1.0)], set())
    for ranks in (snapshot(run.pk)["ranks"], message["ranks"]):
        assert [rank["detail"] for rank in ranks[:3]] == ["in step", "line 7 of rank 1", ""]


def page_of(world: World, run: Run) -> str:
    return " ".join(world.client("operator").get(f"/runs/{run.pk}/").content.decode().split())


def test_the_table_of_gpus_can_be_asked_for_again(world: World) -> None:
    """A launch leads to the page of a run that has no GPUs yet."""
    world.hear()
    run = world.launch()
    empty = page_of(world, run)
    assert '<span id="gpu-count">0</span>' in empty
    assert '<span id="stop-gpus">The run has no GPUs yet and stops at once.</span>' in empty
    again = f'id="gpus" hx-get="/runs/{run.pk}/" hx-trigger="meridian:gpus" hx-select="#gpus"'
    assert f'{again} hx-select-oob="#gpu-count,#stop-gpus"' in empty
    assert allocate(run)
    full = page_of(world, run)
    assert full.count("<tr data-rank=") == 12
    assert '<span id="gpu-count">12</span>' in full
    assert '<span id="stop-gpus">Its 12 GPUs are freed within seconds.</span>' in full
    assert again in full


def test_the_question_before_a_stop_says_from_where_the_run_could_go_on(world: World, run: Run) -> None:
    begins = "It has saved no checkpoint: Retry starts again {}."
    saved = "Resume continues from its last checkpoint, after iteration <span data-saved-step>{}</span>."
    page = page_of(world, run)
    assert f"<span data-unless-saved>{begins.format('at the first iteration')}" in page
    assert f"<span data-if-saved hidden>{saved.format(0)}" in page
    Run.objects.filter(pk=run.pk).update(saved_step=1200, saved_where="/saved/1200")
    page = page_of(world, run)
    assert f"<span data-if-saved>{saved.format('1,200')}" in page
    assert "<span data-unless-saved hidden>" in page
    Run.objects.filter(pk=run.pk).update(saved_step=None, saved_where="")
    run.job.document["persistence"] = {"resume": "/saved/elsewhere"}
    run.job.save()
    assert begins.format("from the checkpoint that its job begins with") in page_of(world, run)


def pieces(story: list[Any], size: int) -> list[list[Any]]:
    return [story[i : i + size] for i in range(0, len(story), size)]


async def keep(messages: list[tuple[int, Message]]) -> None:
    client = AsyncRedis.from_url(settings.VALKEY_URL)
    try:
        await recent.keep(client, messages)
    finally:
        await client.aclose()


@pytest.fixture
def valkey(run: Run) -> Any:
    client = Redis.from_url(settings.VALKEY_URL)
    client.delete(recent.key_of(run.pk))
    yield client
    client.delete(recent.key_of(run.pk))
    client.close()


def say(run: Run, count: int) -> list[Message]:
    """Let `count` messages of `run` be told and kept."""
    sent: list[Message] = []
    for _ in range(count):
        first = sent[-1]["seq"] if sent else Run.objects.get(pk=run.pk).live_seq
        messages = take_in(events(run, 1, first=first), set())
        async_to_sync(keep)(messages)
        sent += [message for _, message in messages]
    return sent


def test_who_was_away_gets_exactly_what_it_missed(run: Run, valkey: Any) -> None:
    messages = say(run, 5)
    for known in range(6):
        assert messages_since(run.pk, known) == as_json(messages[known:])
    assert messages_since(run.pk, 6) is None, "it knows more than there is: of another life"
    assert messages_since(run.pk, -1) is None


def test_a_gap_in_what_is_kept_is_never_papered_over(run: Run, valkey: Any) -> None:
    say(run, 3)
    take_in(events(run, 1, first=3), set())  # ingest died between its commit and telling
    assert messages_since(run.pk, 2) is None
    say(run, 1)
    assert messages_since(run.pk, 2) is None
    assert [message["seq"] for message in messages_since(run.pk, 4) or []] == [5]


def test_what_is_kept_is_bounded_in_number_and_in_bytes(
    run: Run, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "MOST_MESSAGES", 3)
    say(run, 6)
    assert valkey.xlen(recent.key_of(run.pk)) == 3
    assert messages_since(run.pk, 2) is None
    assert len(messages_since(run.pk, 3) or []) == 3
    monkeypatch.setattr(recent, "MOST_BYTES", 10)
    say(run, 1)
    assert valkey.xlen(recent.key_of(run.pk)) == 2
    assert 0 < valkey.ttl(recent.key_of(run.pk)) <= recent.KEPT_S


def test_the_same_message_kept_twice_is_one(run: Run, valkey: Any) -> None:
    messages = take_in(events(run, 1), set())
    async_to_sync(keep)(messages)
    async_to_sync(keep)(messages)
    assert len(messages_since(run.pk, 0) or []) == 1


def test_polling_gets_what_it_missed_or_a_snapshot(world: World, run: Run, valkey: Any) -> None:
    client, url = world.client("viewer"), f"/runs/{run.pk}/live.json"
    messages = say(run, 3)
    assert client.get(url, {"since": 1}).json() == {"events": as_json(messages[1:])}
    assert client.get(url, {"since": 3}).json() == {"events": []}
    for since in ("", "x", "-1", "99", "9" * 40):
        assert client.get(url, {"since": since}).json()["type"] == "snapshot"


def test_without_the_broker_a_snapshot_still_comes(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.2)
    monkeypatch.setattr(broker, "client", lambda: dead)
    take_in(events(run, 1), set())
    answer = world.client("viewer").get(f"/runs/{run.pk}/live.json", {"since": 0}).json()
    assert (answer["type"], answer["seq"]) == ("snapshot", 1)


class Browser:
    """One socket of a run."""

    def __init__(self, run: Run, user: Any) -> None:
        route = {"kwargs": {"run_id": run.pk}}
        scope = {"type": "websocket", "user": user, "url_route": route}
        self.line = ApplicationCommunicator(RunConsumer.as_asgi(), scope)

    async def open(self) -> "Browser":
        await self.line.send_input({"type": "websocket.connect"})
        assert (await self.line.receive_output(LIMIT_S))["type"] == "websocket.accept"
        return self

    async def say(self, **message: Any) -> None:
        await self.line.send_input({"type": "websocket.receive", "text": json.dumps(message)})

    async def hear(self) -> Message:
        output = await self.line.receive_output(LIMIT_S)
        return json.loads(output["text"]) if "text" in output else output

    async def close(self) -> None:
        await self.line.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.line.wait(LIMIT_S)


@pytest.mark.django_db(transaction=True)
async def test_a_socket_that_comes_back_goes_on_where_it_was() -> None:
    from channels.layers import get_channel_layer

    from webapp.live.ingest import group_of

    world = await sync_to_async(make_world)()
    run = await sync_to_async(placed)(world)
    await AsyncRedis.from_url(settings.VALKEY_URL).delete(recent.key_of(run.pk))
    viewer = world.users["viewer"]
    sent = []
    for i in range(3):
        messages = await sync_to_async(take_in)(events(run, 1, first=i), set())
        await keep(messages)
        sent += [message for _, message in messages]
    back = await Browser(run, viewer).open()
    await back.say(type="since", seq=1)
    assert [await back.hear(), await back.hear()] == as_json(sent[1:])
    await get_channel_layer().group_send(
        group_of(run.pk), {"type": "run.events", "message": {**sent[-1], "seq": 4, "spans": []}}
    )
    assert (await back.hear())["seq"] == 4
    assert await back.line.receive_nothing(0.3), "no snapshot besides"
    await back.close()
    lost = await Browser(run, viewer).open()
    await lost.say(type="since", seq=77)
    assert (await lost.hear())["type"] == "snapshot"
    await lost.close()


@pytest.mark.django_db(transaction=True)
async def test_what_comes_while_a_socket_opens_is_neither_lost_nor_doubled() -> None:
    from channels.layers import get_channel_layer

    from webapp.live.ingest import group_of

    world = await sync_to_async(make_world)()
    run = await sync_to_async(placed)(world)
    browser = await Browser(run, world.users["viewer"]).open()
    for seq in (1, 2):  # the first one is in the snapshot already, the second is not
        if seq == 1:
            await sync_to_async(take_in)(events(run, 1), set())
        await get_channel_layer().group_send(
            group_of(run.pk), {"type": "run.events", "message": {"type": "events", "seq": seq}}
        )
    first, second = await browser.hear(), await browser.hear()
    assert (first["type"], first["seq"]) == ("snapshot", 1)
    assert second == {"type": "events", "seq": 2}
    await browser.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["deactivated", "left the team"])
async def test_an_open_socket_ends_when_its_person_may_no_longer_watch(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from webapp.accounts.models import Membership, User
    from webapp.live import consumers

    monkeypatch.setattr(consumers, "PING_S", 0.2)
    world = await sync_to_async(make_world)()
    run = await sync_to_async(placed)(world)
    viewer = world.users["viewer"]
    browser = await Browser(run, viewer).open()
    kinds = set()
    while kinds != {"snapshot", "ping"}:  # on a slow machine the first ping goes before the snapshot is made
        kinds.add((await browser.hear())["type"])
    if how == "deactivated":
        await User.objects.filter(pk=viewer.pk).aupdate(is_active=False)
    else:
        await Membership.objects.filter(user=viewer).adelete()
    async with asyncio.timeout(LIMIT_S):
        while (last := await browser.hear()).get("type") == "ping":
            pass
    assert (last["type"], last["code"]) == ("websocket.close", NOT_FOUND)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["deactivated", "role", "removed", "sessions"])
async def test_an_open_socket_ends_at_once_when_a_service_takes_the_right_away(how: str) -> None:
    """Long before its next ping: the service tells ingest, ingest tells all sockets of that person."""
    from django.contrib.sessions.backends.db import SessionStore

    from webapp.accounts import services
    from webapp.accounts.models import Membership, Role
    from webapp.live.ingest import Ingest

    world = await sync_to_async(make_world)()
    run = await sync_to_async(placed)(world)
    admin, viewer = world.users["admin"], world.users["viewer"]
    session = SessionStore()
    await sync_to_async(services.note_login)(viewer, session, address=None, browser="")
    client = AsyncRedis.from_url(settings.VALKEY_URL, decode_responses=True)
    ingest = Ingest(client)
    while await ingest.round():
        pass
    watching, other = Browser(run, viewer), Browser(run, world.users["operator"])
    watching.line.scope["session"] = session
    for browser in (watching, other):
        assert (await (await browser.open()).hear())["type"] == "snapshot"

    def take_away() -> None:
        membership = Membership.objects.get(user=viewer)
        if how == "deactivated":
            services.deactivate(admin, viewer)
        elif how == "role":
            services.set_role(viewer, world.team, Role.TENANT, actor=admin)
        elif how == "removed":
            services.remove_member(admin, membership)
        else:
            services.end_other_sessions(viewer, None)

    await sync_to_async(take_away)()
    await ingest.round()
    last = await watching.hear()
    assert (last["type"], last["code"]) == ("websocket.close", NOT_FOUND)
    assert await other.line.receive_nothing(0.2), "nobody else's socket is closed"
    await other.close()
    await client.aclose()


async def test_nothing_is_said_of_a_client_that_went_while_it_was_spoken_to() -> None:
    from webapp.live.consumers import RunConsumer

    async def gone(_: Any) -> None:
        raise OSError("the client has disconnected")

    consumer = RunConsumer()
    consumer.base_send = gone
    await consumer.send_json({"type": "ping", "now": 0.0})
    await consumer.send(text_data="{}")
