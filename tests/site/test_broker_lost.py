"""A broker that lost its data, takes no writes or does not answer: no node is called silent for it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.utils import timezone
from redis.asyncio import Redis as AsyncRedis

from webapp.common import broker
from webapp.computations import liveness
from webapp.computations.models import Beat
from webapp.inventory import services
from webapp.live.ingest import Ingest
from webapp.servers import acl

LONG_AGO = timedelta(minutes=5)


@pytest.fixture
def admin() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(django_settings.VALKEY_URL, decode_responses=True) as client:
        yield client


def enrolled(world: Any) -> dict[str, str]:
    return services.enrol_node(world.users["admin"], world.nodes[0])


def forget(admin: redis.Redis) -> None:
    """What an operator's FLUSHALL and a restart without a user file leave: nothing."""
    admin.flushall()
    for user in acl.users(admin):
        if user.startswith("node-"):
            admin.acl_deluser(user)


def test_users_that_the_broker_lost_are_given_back(world: Any, admin: redis.Redis) -> None:
    environment = enrolled(world)
    users = services.NodeUsers()
    users.reconcile(admin)
    forget(admin)
    assert "east-1" in users.reconcile(admin)
    with redis.Redis.from_url(environment["MERIDIAN_BROKER_URL"]) as node:
        assert node.xadd("node:east-1:events", {"e": "{}"})
        assert b"version" in node.get("node:east-1:site")
    assert users.reconcile(admin) == []


def test_rights_that_somebody_changed_are_put_right_and_nothing_is_written_meanwhile(
    world: Any, admin: redis.Redis
) -> None:
    enrolled(world)
    users = services.NodeUsers()
    users.reconcile(admin)
    before = acl.users(admin)["node-east-1"]
    admin.execute_command("ACL", "SETUSER", "node-east-1", "+@all", "~*")
    written = admin.info("commandstats")["cmdstat_acl|setuser"]["calls"]
    assert users.reconcile(admin) == []  # it was not lost
    assert acl.users(admin)["node-east-1"] == before
    for _ in range(3):
        users.reconcile(admin)
    assert admin.info("commandstats")["cmdstat_acl|setuser"]["calls"] == written + 1


def test_a_new_password_is_kept_by_who_looks_again(world: Any, admin: redis.Redis) -> None:
    users = services.NodeUsers()
    enrolled(world)
    users.reconcile(admin)
    environment = enrolled(world)
    users.reconcile(admin)
    with redis.Redis.from_url(environment["MERIDIAN_BROKER_URL"]) as node:
        assert node.ping()


@contextmanager
def full(admin: redis.Redis) -> Iterator[None]:
    before = admin.config_get("maxmemory")["maxmemory"]
    admin.config_set("maxmemory", 1)
    try:
        yield
    finally:
        admin.config_set("maxmemory", before)


@pytest.mark.django_db(transaction=True)
async def test_ingest_mends_a_broker_that_lost_everything_and_listens_anew(admin: redis.Redis) -> None:
    from tests.site.world import make_world

    world = await sync_to_async(make_world)()
    environment = await sync_to_async(enrolled)(world)
    async with AsyncRedis.from_url(django_settings.VALKEY_URL, decode_responses=True) as client:
        ingest = Ingest(client)
        await ingest.round()
        await sync_to_async(_listened_long)()
        forget(admin)
        ingest._looked, ingest._beaten = 1e-9, 0.0  # its next look and its next beat are due
        await ingest.round()
        assert await sync_to_async(_listens_since)() < timedelta(minutes=1)
        with redis.Redis.from_url(environment["MERIDIAN_BROKER_URL"]) as node:
            node.xadd("node:east-1:events", {"e": HEARTBEAT})
        for _ in range(3):
            await ingest.round()
        seen = await sync_to_async(lambda: world.nodes[0].__class__.objects.get(name="east-1").last_seen)()
        assert seen is not None


@pytest.mark.django_db(transaction=True)
async def test_ingest_reads_a_full_broker_empty_and_calls_nobody_silent(admin: redis.Redis) -> None:
    from tests.site.world import make_world

    world = await sync_to_async(make_world)()
    await sync_to_async(enrolled)(world)
    async with AsyncRedis.from_url(django_settings.VALKEY_URL, decode_responses=True) as client:
        ingest = Ingest(client)
        await ingest.round()
        admin.xadd("node:east-1:events", {"e": HEARTBEAT})
        with full(admin):
            for looked in (1e-9, 0.0):  # as usual, and as after an error: then the groups are made again
                await sync_to_async(_listened_long)()
                ingest._looked, ingest._beaten = looked, 0.0
                await ingest.round()
                assert await sync_to_async(_listens_since)() < timedelta(minutes=1)
            assert admin.xlen("node:east-1:events") == 0
        await ingest.round()
        await sync_to_async(_listened_long)()
        ingest._looked, ingest._beaten = 1e-9, 0.0
        await ingest.round()
        assert await sync_to_async(_listens_since)() > LONG_AGO / 2  # it is well again


HEARTBEAT = (
    '{"kind": "heartbeat", "t": 1.79e9, "node": "east-1", "id": 1, "gpus": 2, "device": "cpu", '
    '"version": "", "ranks": [], "lost": 0}'
)


def _listened_long() -> None:
    Beat.objects.update(since=timezone.now() - LONG_AGO)


def _listens_since() -> timedelta:
    since = liveness.listening_since()
    assert since is not None
    return timezone.now() - since


def test_a_full_broker_is_named_and_announcements_are_left_out(world: Any, admin: redis.Redis) -> None:
    broker._last = None
    try:
        with full(admin):
            state = broker.health(max_age_s=0)
            broker.announce(1)  # best effort: raises nothing
        assert (state.ok, "full" in state.text) == (False, True)
        assert broker.health(max_age_s=0).ok
    finally:
        broker._last = None


def test_a_broker_that_hangs_is_asked_once_and_given_up(settings: Any) -> None:
    """redis-py repeats by itself where it is told no other: a page and /readyz would wait for minutes."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def accept() -> None:
            while True:
                try:
                    connections.append(listening.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        settings.VALKEY_URL = f"redis://:x@127.0.0.1:{port}/0"
        broker.client.cache_clear()
        broker._last = None
        try:
            state = broker.health(max_age_s=0)
        finally:
            broker.client.cache_clear()
            broker._last = None
            listening.shutdown(socket.SHUT_RDWR)
    assert not state.ok
    assert "does not answer" in state.text
    assert len(connections) <= 2


# What is asked of a page and needs the broker.
ASKED = [
    "/nodes/{node}/enrol/",
    "/nodes/{node}/revoke/",
    "/nodes/{node}/join-command/",
    "/nodes/{node}/probe/",
    "/nodes/{node}/drain/",
    "/nodes/{node}/delete/",
    "/plans/{plan}/launch/",
]


@pytest.mark.parametrize("address", ASKED)
def test_no_page_is_a_fault_while_the_broker_is_full(world: Any, admin: redis.Redis, address: str) -> None:
    world.hear()
    client = world.client("admin")
    client.raise_request_exception = False
    path = address.format(node=world.nodes[0].pk, plan=world.plan.pk)
    with full(admin):
        answer = client.post(path)
    assert answer.status_code != 404, path
    assert answer.status_code < 500 or answer.status_code == 503, path
