"""The control plane's own connection to Valkey, and whether it answers."""

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import redis
from django.conf import settings
from redis.exceptions import OutOfMemoryError, ReadOnlyError

# What services have changed and ingest tells the browsers: {run: id}, or {person: id} of somebody's rights.
CHANGES = "control:changes"
PROBE = "control:probe"  # written to see whether the broker takes writes


@cache
def client() -> redis.Redis:
    """The process's client: a thread-safe pool that gives up after two seconds."""
    return redis.Redis.from_url(
        settings.VALKEY_URL,
        decode_responses=True,
        socket_connect_timeout=2,
        socket_timeout=2,
        health_check_interval=30,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether one server answers; `since` is when it stopped, as far as this process knows."""

    ok: bool
    text: str = ""
    since: datetime | None = None


_lock = threading.Lock()
_last: tuple[float, Health] | None = None


def health(*, max_age_s: float = 2.0) -> Health:
    """Whether the broker answers and takes what is written, asked at most every `max_age_s` seconds by one
    process."""
    global _last
    with _lock:
        if _last and time.monotonic() - _last[0] < max_age_s:
            return _last[1]
        state = _ask()
        if not state.ok and _last and not _last[1].ok:
            state = _last[1]  # down still: keep since when
        _last = (time.monotonic(), state)
        return state


def _ask() -> Health:
    try:
        client().set(PROBE, 1)  # not PING: a full broker and one whose disk is full answer that
    except (redis.RedisError, OSError) as error:
        return Health(ok=False, text=_sentence(error), since=datetime.now(UTC))
    return Health(ok=True)


def _sentence(error: Exception) -> str:
    goes_on = "Runs continue; their reports arrive later."
    if isinstance(error, OutOfMemoryError):
        return f"The broker is full (maxmemory). {goes_on}"
    if isinstance(error, ReadOnlyError) or "MISCONF" in str(error):
        return f"The broker takes no writes ({type(error).__name__}). {goes_on}"
    return f"The broker does not answer ({type(error).__name__}). {goes_on}"


def announce(run_id: int) -> None:
    """Tell ingest that the state of a run has changed. Best effort: a lost one is seen a little later."""
    _tell({"run": run_id})


def announce_rights(user_id: int) -> None:
    """Tell ingest that a person may see less than before: their open sockets ask again what they may."""
    _tell({"person": user_id})


def _tell(change: dict[str, int]) -> None:
    try:
        client().xadd(CHANGES, change, maxlen=10_000, approximate=True)  # type: ignore[arg-type]
    except (redis.RedisError, OSError):
        health(max_age_s=0)


def uses(key: str, seconds: int) -> int:
    """Count one more use of `key`, over all processes of the site; how many there were since the first,
    which is forgotten after `seconds`. Raises RedisError where the broker does not answer."""
    with client().pipeline(transaction=True) as pipe:
        pipe.set(f"control:uses:{key}", 0, ex=seconds, nx=True)
        pipe.incr(f"control:uses:{key}")
        return int(pipe.execute()[1])
