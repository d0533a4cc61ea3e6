"""A node, with the credentials that it was given when it joined, tries everything that is not its own."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import settings
from redis.exceptions import NoPermissionError

from webapp.common.broker import CHANGES
from webapp.inventory import services

# {own} is the node, {other} another one. Each must be refused, not merely without effect.
ATTEMPTS = [
    # others' events and queues
    "XREAD STREAMS node:{other}:events 0",
    "XRANGE node:{other}:events - +",
    "XLEN node:{other}:events",
    "XADD node:{other}:events * e {{}}",
    "XDEL node:{other}:events 1-1",
    "XTRIM node:{other}:events MAXLEN 0",
    "LPUSH node:{other}:node.{other} x",
    "BRPOP node:{other}:node.{other} 1",
    "LLEN node:{other}:node.{other}",
    "GET node:{other}:site",
    "SET node:{other}:site x",
    "DEL node:{other}:node.{other}",
    "HGET node:{other}:unacked x",
    "ZADD node:{other}:unacked_index 1 x",
    "WATCH node:{other}:events",
    # the control plane's
    f"XREAD STREAMS {CHANGES} 0",
    f"XADD {CHANGES} * run 1",
    f"XLEN {CHANGES}",
    f"DEL {CHANGES}",
    "LPUSH control:control x",
    "BRPOP control:control 1",
    "GET live:1",
    "SET anything 1",
    # its own history: it appends, and can neither read, rewrite nor take back
    "XREAD STREAMS node:{own}:events 0",
    "XRANGE node:{own}:events - +",
    "XREVRANGE node:{own}:events + -",
    "XDEL node:{own}:events 1-1",
    "XTRIM node:{own}:events MAXLEN 0",
    "XACK node:{own}:events ingest 1-1",
    "XREADGROUP GROUP ingest x STREAMS node:{own}:events >",
    "XGROUP DESTROY node:{own}:events ingest",
    "XINFO STREAM node:{own}:events",
    "XCLAIM node:{own}:events ingest x 0 1-1",
    "XSETID node:{own}:events 9-9",
    "EXPIRE node:{own}:events 1",
    "UNLINK node:{own}:events",
    "RENAME node:{own}:events node:{own}:x",
    "DEL node:{own}:events",
    "SET node:{own}:events x",
    "LPUSH node:{own}:events x",
    "HSET node:{own}:events a b",
    "GET node:{own}:events",
    "SET node:{own}:site 9.9.9",
    "DEL node:{own}:site",
    # its own queue: it takes tasks, and can put nothing there
    "LPUSH node:{own}:node.{own} x",
    "RPUSH node:{own}:node.{own} x",
    "LRANGE node:{own}:node.{own} 0 -1",
    "DEL node:{own}:node.{own}",
    # anything else of its own, where it could keep what nobody reads
    "SET node:{own}:x 1",
    "HSET node:{own}:unacked x y",
    "ZADD node:{own}:unacked_index 1 x",
    "SADD node:{own}:_kombu.binding.x y",
    "MULTI",
    # two keys at once, one of them another's
    "BRPOP node:{own}:node.{own} node:{other}:node.{other} 1",
    "SMOVE node:{own}:x node:{other}:x y",
    "LMOVE node:{other}:node.{other} node:{own}:x LEFT LEFT",
    "COPY node:{other}:site node:{own}:x",
    "SORT node:{own}:x BY node:{other}:*",
    "ZUNIONSTORE node:{own}:x 1 node:{other}:unacked_index",
    # the server
    "CONFIG GET *",
    "CONFIG SET maxmemory 1",
    "CONFIG REWRITE",
    "ACL LIST",
    "ACL WHOAMI",
    "ACL SETUSER node-{own} +@all",
    "ACL DELUSER node-{other}",
    "KEYS *",
    "SCAN 0",
    "RANDOMKEY",
    "DBSIZE",
    "FLUSHALL",
    "FLUSHDB",
    "SWAPDB 0 1",
    "INFO",
    "MONITOR",
    "DEBUG SLEEP 0",
    "SHUTDOWN NOSAVE",
    "SAVE",
    "BGSAVE",
    "BGREWRITEAOF",
    "REPLICAOF NO ONE",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal",
    "CLIENT PAUSE 1000",
    "SLOWLOG GET",
    "LATENCY RESET",
    "MEMORY DOCTOR",
    "MODULE LIST",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "SCRIPT LOAD return",
    "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "EVALSHA_RO e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "EVAL_RO return 0",
    "FUNCTION LOAD x",
    "FUNCTION LIST",
    "EVAL return 0",
    "FCALL x 0",
    "SELECT 1",
    "MIGRATE h 1 k 0 1",
    "OBJECT ENCODING node:{own}:events",
    "DUMP node:{own}:events",
    "COMMAND COUNT",
    # channels: browsers' among them
    "PUBLISH live x",
    "PUBLISH node:{own}:x y",
    "SUBSCRIBE live",
    "PSUBSCRIBE *",
    "SSUBSCRIBE x",
    "PUBSUB CHANNELS",
]


@pytest.fixture
def own(world: Any) -> Iterator[redis.Redis]:
    """The broker as node east-1 reaches it; mid-1 has joined too."""
    for node in world.nodes[:2]:
        environment = services.enrol_node(world.users["admin"], node)
        if node == world.nodes[0]:
            mine = environment
    with redis.Redis.from_url(settings.VALKEY_URL) as site:
        site.xadd("node:mid-1:events", {"e": "{}"})
        site.xadd(CHANGES, {"run": 1})
    with redis.Redis.from_url(mine["MERIDIAN_BROKER_URL"], decode_responses=True) as client:
        yield client


def test_everything_that_is_not_its_own_is_refused(own: redis.Redis) -> None:
    let_in = []
    for attempt in ATTEMPTS:
        command = attempt.format(own="east-1", other="mid-1").split(" ")
        try:
            own.execute_command(*command)
        except NoPermissionError:
            continue
        except redis.ResponseError as error:
            if "no permission" in str(error).lower() or "not allowed" in str(error).lower():
                continue
            let_in.append((attempt, str(error)))
        else:
            let_in.append((attempt, "done"))
    assert let_in == []


def test_what_is_its_own_works(own: redis.Redis) -> None:
    with redis.Redis.from_url(settings.VALKEY_URL, decode_responses=True) as site:
        before = site.xlen("node:east-1:events")
        assert own.xadd("node:east-1:events", {"e": json.dumps({"kind": "heartbeat"})})
        assert site.xlen("node:east-1:events") == before + 1
        site.lpush("node:east-1:node.east-1", "task")
    assert own.brpop(["node:east-1:node.east-1"], 1)[1] == "task"
    assert own.time()[0] > 1_600_000_000
