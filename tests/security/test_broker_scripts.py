"""A node's broker user tries to block the broker for everybody; each attempt is refused at once.

The attack that did not bounce was EVALSHA of an endless loop that had written. SCRIPT KILL is refused for
such a script, and the broker answered nobody until it was killed.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from webapp.servers import running
from webapp.servers.acl import set_node_user

PASSWORD = "a-node's-password"
LOOP = "redis.call('xadd', KEYS[1], '*', 'e', '1') while true do end"


@pytest.fixture(scope="module")
def broker() -> Iterator[redis.Redis]:
    with (
        tempfile.TemporaryDirectory(prefix="meridian-test-") as folder,
        running(Path(folder)) as urls,
        redis.Redis.from_url(urls.valkey_url, decode_responses=True, socket_timeout=20) as client,
    ):
        yield client


@pytest.fixture
def node(broker: redis.Redis) -> Iterator[redis.Redis]:
    set_node_user(broker, "a", hashlib.sha256(PASSWORD.encode()).hexdigest())
    port = broker.connection_pool.connection_kwargs["port"]
    with redis.Redis(port=port, username="node-a", password=PASSWORD, socket_timeout=20) as client:
        yield client


def test_a_node_may_not_run_a_script_that_an_administrator_has_loaded(
    node: redis.Redis, broker: redis.Redis
) -> None:
    digest = broker.script_load(LOOP)
    for attempt in (
        ("EVALSHA", digest, "1", "node:a:events"),
        ("EVAL", LOOP, "1", "node:a:events"),
        ("EVAL_RO", "while true do end", "0"),
        ("SCRIPT", "LOAD", LOOP),
        ("FUNCTION", "LOAD", "#!lua name=x\nserver.register_function('x', function() while true do end end)"),
        ("FCALL", "x", "0"),
    ):
        with pytest.raises(NoPermissionError):
            node.execute_command(*attempt)
    assert broker.ping()


def test_no_category_of_commands_is_given_whole(broker: redis.Redis, node: redis.Redis) -> None:
    """What a newer server adds to a category must not come to nodes by itself."""
    rights = broker.acl_getuser("node-a")
    words = " ".join([*rights["commands"], *(str(selector) for selector in rights["selectors"])])
    assert "+@" not in words
    assert not {"~*", "&*"} & set(rights["keys"] + rights["channels"])


SLOW_OR_BLOCKING = [
    "KEYS *",
    "SCAN 0 COUNT 100000",
    "SORT node:a:node.a",
    "OBJECT FREQ node:a:events",
    "DEBUG SLEEP 10",
    "WAIT 1 0",
    "WAITAOF 1 0 0",
    "CLIENT PAUSE 100000",
    "CLIENT KILL TYPE normal",
    "CLIENT UNBLOCK 1",
    "FLUSHALL",
    "SHUTDOWN NOSAVE",
    "SUBSCRIBE x",
    "MONITOR",
    "MULTI",
    "WATCH node:a:events",
    "XREAD BLOCK 0 STREAMS node:a:events $",
    "XRANGE node:a:events - +",
    "LRANGE node:a:node.a 0 -1",
    "SMEMBERS node:a:x",
    "BRPOP control:control 0",
    "BRPOP node:b:node.b 0",
]


@pytest.mark.parametrize("command", SLOW_OR_BLOCKING)
def test_a_node_may_not_hold_the_broker_up(node: redis.Redis, command: str) -> None:
    with pytest.raises((NoPermissionError, redis.ResponseError), match=r"(?i)no permission|not allowed"):
        node.execute_command(*command.split(" "))
