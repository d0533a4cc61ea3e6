"""The control plane's own connection to Valkey, and whether it answers."""

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import redis
from django.conf import settings

# What services have changed and ingest tells the browsers: {run: id}, or {person: id} of somebody's rights.
CHANGES = "control:changes"


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
    """Whether the broker answers, asked at most every `max_age_s` seconds by one process."""
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
        client().ping()
    except (redis.RedisError, OSError) as error:
        return Health(ok=False, text=_sentence(error), since=datetime.now(UTC))
    return Health(ok=True)


def _sentence(error: Exception) -> str:
    return f"The broker does not answer ({type(error).__name__}). Runs continue; their reports arrive later."


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
