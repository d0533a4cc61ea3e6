"""Whether this process lives (/healthz) and whether the site can do its work (/readyz).

`/healthz` asks nobody: it answers 200 as long as this process handles requests. What restarts a container
should watch it, for a database that is away is not mended by restarting the web process.
`/readyz` asks everything that a request may need, and says what is wrong and since when. What sends
requests to several web processes should watch that. Neither wants a login and neither says an address,
a name or a password of a server.
"""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import structlog
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from webapp.common import broker
from webapp.computations import liveness
from webapp.inventory.models import silence
from webapp.jobs.models import RANK_OVER, Status

log = structlog.get_logger(__name__)
STARTED = datetime.now(UTC)
ANSWER_WITHIN_S = 2
AGAIN_AFTER_S = 1.0  # many who ask at once cost one round of questions
RECONCILER_LATE = timedelta(seconds=20)  # it works every 2 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One answer. `since`: when it became so, as far as this process or the database knows."""

    ok: bool
    detail: str
    since: datetime | None = None


@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200: this process answers."""
    return JsonResponse({"ok": True, "since": STARTED})


@login_not_required
@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """200 where all checks are well, else 503; each with ok, detail and since."""
    checks = readiness()
    ready = all(check.ok for check in checks.values())
    body = {"ok": ready, "checks": {name: asdict(check) for name, check in checks.items()}}
    return JsonResponse(body, status=200 if ready else 503)


_lock = threading.Lock()
_last: tuple[float, dict[str, Check]] | None = None


def readiness(*, max_age_s: float = AGAIN_AFTER_S) -> dict[str, Check]:
    """All checks by name, asked at most every `max_age_s` seconds by one process."""
    global _last
    with _lock:
        if _last and time.monotonic() - _last[0] < max_age_s:
            return _last[1]
        before = _last[1] if _last else {}
        checks = {name: _dated(check, before.get(name)) for name, check in _ask().items()}
        _tell(before, checks)
        _last = (time.monotonic(), checks)
        return checks


def _tell(before: dict[str, Check], now: dict[str, Check]) -> None:
    """Log what has changed; the requests themselves are not logged."""
    for name, check in now.items():
        was_ok = before[name].ok if name in before else True
        if check.ok != was_ok:
            say = log.info if check.ok else log.warning
            say("well again" if check.ok else "not ready", check=name, detail=check.detail)


def _dated(check: Check, before: Check | None) -> Check:
    """`check` with the time since when it is so, where it does not know that itself."""
    if check.since is not None:
        return check
    since = before.since if before is not None and before.ok == check.ok else datetime.now(UTC)
    return Check(ok=check.ok, detail=check.detail, since=since)


def _ask() -> dict[str, Check]:
    checks = {"broker": _broker(), "disk": disk()}
    by_name: dict[str, Callable[[psycopg.Cursor[Any]], Check]] = {
        "migrations": _migrations,
        "ingest": lambda cursor: _beat(cursor, liveness.INGEST, liveness.STALE, "reads what nodes report"),
        "nodes": _nodes,
        "reconciler": lambda cursor: _beat(cursor, liveness.RECONCILER, RECONCILER_LATE, "acts on runs"),
    }
    try:
        with _connect() as line, line.cursor() as cursor:
            cursor.execute("SELECT 1")
            checks["database"] = Check(ok=True, detail="answers")
            checks |= {name: _guarded(ask, cursor) for name, ask in by_name.items()}
    except psycopg.Error as error:
        checks["database"] = Check(ok=False, detail=f"does not answer ({type(error).__name__})")
        unknown = Check(ok=False, detail="unknown while the database does not answer")
        checks |= {name: unknown for name in by_name if name not in checks}
    return dict(sorted(checks.items()))


def _connect() -> "psycopg.Connection[Any]":
    """A connection of its own: the answer must come soon, also where the pool waits for a dead server."""
    wanted = connection.get_connection_params()
    wanted.pop("cursor_factory", None)
    wanted.pop("context", None)
    wanted["connect_timeout"] = ANSWER_WITHIN_S
    wanted["options"] = f"{wanted.get('options', '')} -c statement_timeout={ANSWER_WITHIN_S}s".strip()
    return psycopg.connect(**wanted, autocommit=True)


def _guarded(ask: Callable[["psycopg.Cursor[Any]"], Check], cursor: "psycopg.Cursor[Any]") -> Check:
    try:
        return ask(cursor)
    except psycopg.errors.UndefinedTable:
        return Check(ok=False, detail="its table is missing: run `manage.py migrate`")


def _migrations(cursor: "psycopg.Cursor[Any]") -> Check:
    cursor.execute("SELECT app, name FROM django_migrations")
    missing = sorted(_known_migrations() - set(cursor.fetchall()))
    if not missing:
        return Check(ok=True, detail="all applied")
    names = ", ".join(f"{app}.{name}" for app, name in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return Check(ok=False, detail=f"not applied: {names}{more}; run `manage.py migrate`")


@cache
def _known_migrations() -> frozenset[tuple[str, str]]:
    """What the code of this process wants applied; `migrate` also notes those that replace others."""
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).disk_migrations)


HEARD = """
    SELECT count(*), count(*) FILTER (WHERE node.last_seen >= now() - %s)
    FROM inventory_node node
    WHERE EXISTS (
        SELECT FROM jobs_rankstate rank JOIN jobs_run run ON run.id = rank.run_id
        WHERE rank.node_id = node.id AND run.status = %s AND NOT rank.state = ANY(%s)
    )
"""


def _nodes(cursor: "psycopg.Cursor[Any]") -> Check:
    """Nodes of runs must be heard: one that is not has a fault of its own, all of them have one of ours."""
    cursor.execute(HEARD, [silence(), str(Status.RUNNING), [str(state) for state in RANK_OVER]])
    row = cursor.fetchone()
    assert row is not None
    total, reporting = row
    if not total:
        return Check(ok=True, detail="none has a run")
    return Check(ok=reporting > 0, detail=f"{reporting} of {total} with runs are heard")


def _beat(cursor: "psycopg.Cursor[Any]", name: str, late: timedelta, does: str) -> Check:
    cursor.execute("SELECT at, since FROM computations_beat WHERE name = %s", [name])
    row = cursor.fetchone()
    if row is None:
        return Check(ok=False, detail="has not started yet")
    at, since = row
    silent = datetime.now(UTC) - at
    if silent > late:
        return Check(ok=False, detail=f"silent for {silent.total_seconds():.0f} s", since=at)
    return Check(ok=True, detail=does, since=since)


def _broker() -> Check:
    state = broker.health(max_age_s=0.5)
    return Check(ok=state.ok, detail="answers" if state.ok else state.text, since=state.since)


def disk() -> Check:
    """Whether what the site writes under its folder, its own servers' data included, still has room."""
    least = settings.LEAST_FREE_BYTES
    try:
        free = min(shutil.disk_usage(folder).free for folder in _written())
    except OSError as error:
        return Check(ok=False, detail=f"the folder of the site cannot be read ({error.strerror})")
    detail = f"{free / 1e6:,.0f} MB free"
    return Check(
        ok=free >= least, detail=detail if free >= least else f"{detail}, under {least / 1e6:,.0f} MB"
    )


def _written() -> list[Path]:
    servers = settings.VAR / "servers"  # may be a link to another file system
    return [settings.VAR, servers] if servers.exists() else [settings.VAR]
