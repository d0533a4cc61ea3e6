"""A node's broker user: everything that its agent needs, and nothing of anybody else's."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from engine.errors import InputError
from webapp.servers import running
from webapp.servers.acl import drop_node_user, set_node_user

SECRET = "a-node's-password"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


@pytest.fixture(scope="module")
def broker() -> Iterator[redis.Redis]:
    with tempfile.TemporaryDirectory(prefix="meridian-test-") as folder, running(Path(folder)) as urls:
        yield redis.Redis.from_url(urls.valkey_url, decode_responses=True)


@pytest.fixture
def node(broker: redis.Redis) -> Iterator[redis.Redis]:
    set_node_user(broker, "a", DIGEST)
    port = broker.connection_pool.connection_kwargs["port"]
    client = redis.Redis(port=port, username="node-a", password=SECRET, decode_responses=True)
    yield client
    client.close()


REFUSED = [
    "GET secret",
    "SET secret 1",
    "LPUSH control x",
    "BRPOP control 1",
    "LPUSH control:control x",
    "XADD node:b:events * e 1",
    "XADD events * e 1",
    "XLEN node:b:events",
    "LPUSH node:b:node.b x",
    "BRPOP node:b:node.b 1",
    "BRPOP node:a:node.a node:b:node.b 1",
    "HGET node:b:unacked x",
    "DEL node:b:events",
    "LPUSH node:ab:node.ab x",
    "LPUSH node:a x",
    "DEL node:a:events",
    "SET node:a:events x",
    "KEYS *",
    "SCAN 0",
    "RANDOMKEY",
    "DBSIZE",
    "FLUSHALL",
    "FLUSHDB",
    "CONFIG GET *",
    "CONFIG SET dir /tmp",
    "ACL LIST",
    "ACL WHOAMI",
    "ACL SETUSER x on",
    "MONITOR",
    "INFO",
    "DEBUG SLEEP 0",
    "SHUTDOWN",
    "SAVE",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal",
    "SELECT 1",
    "MOVE node:a:x 1",
    "SWAPDB 0 1",
    "REPLICAOF NO ONE",
    "PUBLISH live x",
    "PUBLISH node:a:x y",
    "SUBSCRIBE live",
    "PSUBSCRIBE *",
    "EVAL return 0",
    "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "SCRIPT LOAD return",
    "FCALL x 0",
    "LPUSH node:a:node.a x",
    "RPUSH node:a:node.a x",
    "SET node:a:x 1",
    "HSET node:a:unacked x y",
    "ZADD node:a:unacked_index 1 x",
    "SADD node:a:_kombu.binding.node.a x",
    "SMEMBERS node:a:_kombu.binding.node.a",
    "DEL node:a:node.a",
    "WATCH node:a:events",
    "MULTI",
    "CLIENT NO-EVICT on",
    "CLIENT TRACKING on",
    "CLIENT REPLY OFF",
    "XREAD STREAMS node:a:events 0",
    "XTRIM node:a:events MAXLEN 0",
    "XDEL node:a:events 0-1",
    "SORT node:a:x BY node:b:* GET node:b:*",
    "COPY node:b:x node:a:x",
    "RENAME node:a:x node:b:x",
    "SCRIPT FLUSH",
    "FUNCTION LIST",
    "MODULE LIST",
    "OBJECT ENCODING node:a:x",
    "WAIT 0 0",
]


@pytest.mark.parametrize("command", REFUSED)
def test_a_node_may_not(node: redis.Redis, command: str) -> None:
    with pytest.raises(redis.ResponseError, match=r"(?i)no permission|NOPERM|can't|not allowed"):
        node.execute_command(*command.split(" "))


def test_a_node_may_append_events_and_empty_its_queue(node: redis.Redis, broker: redis.Redis) -> None:
    broker.delete("node:a:events")
    assert node.xadd("node:a:events", {"e": json.dumps({"kind": "heartbeat"})})
    broker.lpush("node:a:node.a", "task")
    assert node.brpop(["node:a:node.a"], 1) == ("node:a:node.a", "task")


def test_a_new_password_replaces_the_old_one_and_a_dropped_user_is_cut_off(
    node: redis.Redis, broker: redis.Redis
) -> None:
    assert node.ping()
    set_node_user(broker, "a", hashlib.sha256(b"another").hexdigest())
    port = broker.connection_pool.connection_kwargs["port"]
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=port, username="node-a", password=SECRET).ping()
    assert drop_node_user(broker, "a")
    assert not drop_node_user(broker, "a")
    with pytest.raises((redis.AuthenticationError, redis.ConnectionError)):
        node.execute_command("PING")


def test_users_survive_a_restart_and_the_admin_password_is_never_in_the_file(open_folder: Path) -> None:
    with running(open_folder / "var") as urls:
        set_node_user(redis.Redis.from_url(urls.valkey_url), "kept", DIGEST)
    with running(open_folder / "var") as urls:
        port = int(urls.valkey_url.rpartition(":")[2].partition("/")[0])
        client = redis.Redis(port=port, username="node-kept", password=SECRET)
        assert client.xadd("node:kept:events", {"e": "1"})
        with pytest.raises(redis.ResponseError):
            client.keys("*")
        password = urls.valkey_url.split(":")[2].partition("@")[0]
        assert password not in (open_folder / "var" / "servers" / "valkey" / "users.acl").read_text()


@pytest.mark.parametrize("name", ["", "A", "a b", "a:b", "*", "a-", "x" * 41, "a\n"])
def test_a_name_that_would_widen_the_pattern_is_refused(broker: redis.Redis, name: str) -> None:
    with pytest.raises(InputError):
        set_node_user(broker, name, DIGEST)


def test_a_password_in_place_of_its_digest_is_refused_and_not_shown(broker: redis.Redis) -> None:
    with pytest.raises(InputError) as caught:
        set_node_user(broker, "a", SECRET)
    assert SECRET not in str(caught.value)
