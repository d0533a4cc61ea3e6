"""The last messages to the browsers of each run, so that one who was away gets just what it missed.

Kept in Valkey, one stream per run whose entry ids are the messages' `seq`: they outlive the web and the
ingest process. A stream is bounded in messages and bytes and forgotten when a run is quiet; who asks for
more than there is gets a snapshot.
"""

import json
from typing import Any

from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from webapp.common import broker

Message = dict[str, Any]
MOST_MESSAGES = 300  # 30 s of a busy run
MOST_BYTES = 2_000_000
KEPT_S = 600


def key_of(run_id: int) -> str:
    """The key of a run's messages."""
    return f"control:recent:{run_id}"


async def keep(client: AsyncRedis, messages: list[tuple[int, Message]]) -> None:
    """Append messages, as (run id, message), in the order of their `seq`.

    Raises
    ------
    RedisError, OSError
        The broker is away: those who ask then find a gap and get a snapshot.
    """
    async with client.pipeline(transaction=False) as pipe:
        for run_id, message in messages:
            text = json.dumps(message, separators=(",", ":"))
            most = max(2, min(MOST_MESSAGES, MOST_BYTES // len(text)))
            pipe.xadd(key_of(run_id), {"m": text}, id=f"{message['seq']}-0", maxlen=most, approximate=False)
            pipe.expire(key_of(run_id), KEPT_S)
        # An entry that is there already (the same batch again after a crash) is refused, and only it.
        await pipe.execute(raise_on_error=False)


def since(run_id: int, seq: int, now: int) -> list[Message] | None:
    """The messages after `seq` up to `now` (the run's last) if all of them are there, else None."""
    if not 0 <= seq <= now:
        return None
    if seq == now:
        return []
    try:
        entries: Any = broker.client().xrange(key_of(run_id), f"{seq + 1}-0", f"{now}-0")
    except (RedisError, OSError):
        return None
    if [entry.partition("-")[0] for entry, _ in entries] != [str(n) for n in range(seq + 1, now + 1)]:
        return None
    return [json.loads(fields["m"]) for _, fields in entries]
