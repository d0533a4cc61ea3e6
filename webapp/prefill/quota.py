"""Tokens per minute of a tenancy: a bucket in Valkey that all processes of the site draw from.

It holds a minute's tokens and fills evenly: a minute's tokens may come at once, and no minute gets more than
twice its limit. Taking is one script: two requests cannot take the same tokens.
"""

from dataclasses import dataclass
from typing import Literal

from webapp.common import broker

MINUTE_S = 60.0
# KEYS: the bucket. ARGV: its size, tokens wanted (below 0: to put back), and how: `look`, `take` them if they
# are there, or `force`, which takes them in any case. The clock is the server's.
SCRIPT = """
local size, wanted, how = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local held = redis.call('HMGET', KEYS[1], 'level', 'at')
local level = size
if held[1] then
  level = math.min(size, tonumber(held[1]) + math.max(0, now - tonumber(held[2])) * size / 60)
end
local ok = how == 'force' or level >= wanted
if ok and how ~= 'look' then level = math.min(size, level - wanted) end
if how ~= 'look' then
  redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'at', string.format('%.6f', now))
  redis.call('EXPIRE', KEYS[1], 120)
end
return {ok and 1 or 0, string.format('%.6f', level)}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """ok : the tokens were there.  remaining : tokens left.  wait_s : until those wanted are there; 0 if ok.
    full_s : until the bucket is full again."""

    ok: bool
    limit: int
    remaining: int
    wait_s: float
    full_s: float


def take(tenancy_id: int, tokens: int, limit: int) -> Drawn:
    """Take `tokens` from what a tenancy may still use, if they are there.

    Raises
    ------
    RedisError
        The broker does not answer: nothing is known, and nothing may be sold.
    """
    return _draw(tenancy_id, tokens, limit, "take")


def give_back(tenancy_id: int, tokens: int, limit: int) -> Drawn:
    """Put back `tokens` that were taken and not used; fewer than 0 were used beyond those taken.

    Raises as `take` does.
    """
    return _draw(tenancy_id, -tokens, limit, "force")


def look(tenancy_id: int, tokens: int, limit: int) -> Drawn:
    """What `take` would answer; nothing is taken. Raises as `take` does."""
    return _draw(tenancy_id, tokens, limit, "look")


def _draw(tenancy_id: int, tokens: int, limit: int, how: Literal["look", "take", "force"]) -> Drawn:
    key = f"control:quota:{tenancy_id}"
    answer = broker.client().eval(SCRIPT, 1, key, limit, tokens, how)
    ok, level = bool(answer[0]), float(answer[1])
    rate = limit / MINUTE_S
    return Drawn(
        ok=ok,
        limit=limit,
        remaining=max(0, int(level)),
        wait_s=0.0 if ok else (tokens - level) / rate,
        full_s=(limit - level) / rate,
    )
