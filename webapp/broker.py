"""The control plane's own connection to Valkey, and whether it answers."""

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import redis
from django.conf import settings

CHANGES = "control:changes"  # stream of run ids whose state a service has changed; ingest tells the browsers


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
    return f"The broker does not answer ({type(error).__name__}). Runs go on; their reports come later."


def announce(run_id: int) -> None:
    """Tell ingest that the state of a run has changed. Best effort: a lost one is seen a little later."""
    try:
        client().xadd(CHANGES, {"run": run_id}, maxlen=10_000, approximate=True)
    except (redis.RedisError, OSError):
        health(max_age_s=0)
