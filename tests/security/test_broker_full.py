"""A node fills the broker with its own broker user: it is refused alone, and the others are heard."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import NoPermissionError, OutOfMemoryError

from tests.site.world import make_world
from webapp.accounts.models import AuditEntry
from webapp.inventory import services
from webapp.inventory.models import Node
from webapp.inventory.services.bounds import MOST_CONNECTIONS
from webapp.live.ingest import MOST_BYTES, Ingest, counts
from webapp.live.services import take_in

MB = 1_000_000
pytestmark = pytest.mark.django_db(transaction=True)


def heartbeat(node: str) -> str:
    return (
        f'{{"kind": "heartbeat", "t": 1.79e9, "node": "{node}", "id": 1, "gpus": 1, "device": "cpu", '
        '"version": "", "ranks": [], "lost": 0}'
    )


@pytest.fixture
def admin() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(settings.VALKEY_URL, decode_responses=True) as client:
        client.flushall()
        yield client
        client.flushall()


@pytest.fixture
def world(transactional_db: Any) -> Any:
    return make_world()


@pytest.fixture
def clients(world: Any) -> Iterator[list[redis.Redis]]:
    """The broker as the attacker east-1 and its neighbour mid-1 reach it, each with its own password."""
    connections = []
    for node in world.nodes[:2]:
        environment = services.enrol_node(world.users["admin"], node)
        connections.append(redis.Redis.from_url(environment["MERIDIAN_BROKER_URL"]))
    yield connections
    for client in connections:
        client.close()


async def rounds(ingest: Ingest, count: int = 1) -> None:
    """Rounds in which ingest looks at once for what it looks for every 2 s."""
    for _ in range(count):
        ingest._looked = min(ingest._looked, 1e-9)
        await ingest.round()


def node_called(name: str) -> Any:
    return sync_to_async(Node.objects.get)(name=name)


async def test_who_fills_its_stream_is_refused_alone_until_it_is_read(
    clients: list[redis.Redis], world: Any, settings: Any
) -> None:
    settings.NODE_BROKER_BYTES = 2 * MB
    attacker, neighbour = clients
    async with AsyncRedis.from_url(settings.VALKEY_URL, decode_responses=True) as client:
        ingest = Ingest(client)
        await rounds(ingest)
        for _ in range(400):
            attacker.xadd("node:east-1:events", {"e": b"x" * 100_000})
        await rounds(ingest)
        with pytest.raises(NoPermissionError):
            attacker.xadd("node:east-1:events", {"e": b"x"})
        assert attacker.xlen("node:east-1:events") > 0, "what it has appended is kept, and read in parts"
        assert neighbour.xadd("node:mid-1:events", {"e": heartbeat("mid-1")})
        refused = await node_called("east-1")
        assert refused.refused_since is not None
        await rounds(ingest, 5)
        assert (await node_called("mid-1")).last_seen is not None
        assert attacker.xadd("node:east-1:events", {"e": heartbeat("east-1")}), "it was read: taken again"
        await rounds(ingest, 2)
        assert (await node_called("east-1")).last_seen is not None
    assert await sync_to_async(_verbs)() == ["refuse", "admit"]


def _verbs() -> list[str]:
    rows = AuditEntry.objects.filter(verb__in=("refuse", "admit")).order_by("pk")
    return [row.verb for row in rows]


def fill(attacker: redis.Redis, most: int) -> bool:
    """Append entries until the broker is full to the last byte; whether it became so."""
    for size in (100_000, 5_000, 100):
        with contextlib.suppress(OutOfMemoryError):
            for _ in range(most):
                attacker.xadd("node:east-1:events", {"e": b"x" * size})
            return False
    return True


@contextmanager
def room(admin: redis.Redis, size: int) -> Iterator[None]:
    before = admin.config_get("maxmemory")["maxmemory"]
    admin.config_set("maxmemory", int(admin.info("memory")["used_memory"]) + size)
    try:
        yield
    finally:
        admin.config_set("maxmemory", before)


async def test_others_are_heard_again_after_the_whole_broker_was_filled(
    clients: list[redis.Redis], world: Any, admin: redis.Redis, settings: Any
) -> None:
    settings.NODE_BROKER_BYTES = 2 * MB
    attacker, neighbour = clients
    async with AsyncRedis.from_url(settings.VALKEY_URL, decode_responses=True) as client:
        ingest = Ingest(client)
        await rounds(ingest)
        with room(admin, 64 * MB):
            assert fill(attacker, 1000)
            with pytest.raises(OutOfMemoryError):
                neighbour.xadd("node:mid-1:events", {"e": heartbeat("mid-1")})
            await rounds(ingest, 4)
            assert neighbour.xadd("node:mid-1:events", {"e": heartbeat("mid-1")})
            await rounds(ingest, 2)
        assert (await node_called("mid-1")).last_seen is not None


def test_a_node_with_too_many_connections_loses_them_alone(
    clients: list[redis.Redis], world: Any, admin: redis.Redis
) -> None:
    attacker, neighbour = clients
    neighbour.ping()
    port = attacker.connection_pool.connection_kwargs["port"]
    credentials = {key: attacker.connection_pool.connection_kwargs[key] for key in ("username", "password")}
    opened = [redis.Redis(port=port, **credentials) for _ in range(MOST_CONNECTIONS + 1)]
    try:
        for one in opened:
            one.ping()
        assert services.cut_crowds(admin) == ["east-1"]
        users = [one["user"] for one in admin.client_list()]
        assert "node-east-1" not in users
        assert "node-mid-1" in users
        assert services.cut_crowds(admin) == []
    finally:
        for one in opened:
            one.close()


def test_the_servers_limits_hold_for_what_is_not_written(admin: redis.Redis) -> None:
    """Answers that nobody reads and commands without an end are bounded; what is acknowledged is kept."""
    config = admin.config_get("*")
    assert int(config["maxmemory"]) == 1024 * 2**20
    assert config["maxmemory-policy"] == "noeviction"
    assert config["maxmemory-clients"] == "25%"
    assert config["client-output-buffer-limit"].startswith(f"normal {128 * 2**20} ")
    assert int(config["client-query-buffer-limit"]) == 64 * 2**20
    assert int(config["proto-max-bulk-len"]) == 32 * 2**20


def test_a_node_that_never_reads_its_answers_is_cut_off(clients: list[redis.Redis]) -> None:
    attacker, neighbour = clients
    connection = attacker.connection_pool.get_connection()
    payload = connection.pack_command("PING", b"x" * MB)
    sent = 0
    with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
        for sent in range(1000):  # noqa: B007
            connection.send_packed_command(payload)
    assert sent < 999, "1 GB of answers waits for a node that reads none"
    assert neighbour.ping()


def test_an_entry_dated_into_the_future_makes_no_node_heard_for_ever(world: Any) -> None:
    from tests.site.telemetry import read
    from webapp.live.services.intake import _entry_time

    assert _entry_time(f"{2**63 - 1}-1") <= timezone.now()
    take_in(read([("east-1", "99999999999999-0", {"kind": "heartbeat", "gpus": 1, "device": "cpu"})]), set())
    node = Node.objects.get(name="east-1")
    assert node.last_seen is None or node.last_seen <= timezone.now() + timedelta(seconds=1)


def test_ingest_asks_for_no_more_than_it_is_given() -> None:
    few, most = counts({"large": 100_000, "larger": 9 * MB, "small": 200, "smaller": 100})
    assert few == {"large": 80, "larger": 1}
    assert most == 500
    few, most = counts({str(number): 16_000 for number in range(100)})
    assert few == {}
    assert most * 100 * 16_000 <= MOST_BYTES
    assert counts({}) == ({}, 500)
