"""Computations: asked for by people, worked at by the search worker, one claim at a time."""

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from kombu.exceptions import OperationalError
from redis import RedisError

from webapp.accounts.models import Team
from webapp.accounts.permissions import require
from webapp.accounts.services import locked, record
from webapp.common.asked_once import once
from webapp.common.control import send_task
from webapp.computations.models import OPEN, Computation, ComputationState, SiteIdentity

log = structlog.get_logger(__name__)
# A worker says every 3 s that it lives; one that is silent for longer is gone.
SILENT_S = 20
# A queued computation whose message was lost is sent again after this.
UNHEARD_S = 60
_SET_LATER = {"request", "created_by", "progress", "answer", "claim", "started_at", "heard_at", "finished_at"}


@transaction.atomic
def start(
    actor: Any, *, team: Team, kind: str, name: str, request: dict[str, Any], key: str = ""
) -> Computation:
    """Keep a question and send it to the search worker once it is committed.

    Parameters
    ----------
    key : idempotency key: what `actor` has asked for with the same key before is returned.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of `team`.
    ValidationError
        The name is too long or missing.
    """
    require(actor, team)
    computation = Computation(
        team=team, kind=kind, name=name, request=request, created_by=actor, idempotency_key=key
    )

    def queue() -> Computation:
        computation.clean_fields(exclude=_SET_LATER)
        computation.save()
        record(actor, "start", computation, team=team, after={"name": name, "kind": kind})
        transaction.on_commit(lambda: _send(computation.pk))
        return computation

    return once(actor, Computation.objects.all(), key, queue)


@transaction.atomic
def ask_to_cancel(actor: Any, computation: Computation) -> bool:
    """End a queued computation at once, a running one within a second; what it has found is kept.

    Returns False where it has ended already.

    Raises PermissionDenied where `actor` is no operator of its team.
    """
    require(actor, computation.team)
    locked = Computation.objects.select_for_update().get(pk=computation.pk)
    if not locked.is_open:
        return False
    locked.cancel_asked = True
    if locked.state == ComputationState.QUEUED:
        locked.state, locked.finished_at = ComputationState.CANCELLED, timezone.now()
    locked.save(update_fields=["cancel_asked", "state", "finished_at"])
    record(actor, "cancel", locked, team=locked.team, after={"state": locked.state})
    return True


@transaction.atomic
def remove(actor: Any, computation: Computation) -> None:
    """Delete a computation; an open one is no longer worked at.

    Raises PermissionDenied where `actor` is no operator of its team.
    """
    require(actor, computation.team)
    record(actor, "delete", computation, team=computation.team, before={"name": computation.name})
    computation.delete()


@transaction.atomic
def delete_computations(actor: Any, rows: QuerySet[Computation]) -> int:
    """Delete computations, as `remove` does each; returns how many.

    Raises PermissionDenied where `actor` is no operator of one of their teams.
    """
    computations = locked(actor, rows)
    for computation in computations:
        remove(actor, computation)
    return len(computations)


@transaction.atomic
def claim(pk: uuid.UUID) -> Computation | None:
    """Take a queued computation to work at it; None where it is not queued any more."""
    waiting = Computation.objects.select_for_update(skip_locked=True).filter(
        pk=pk, state=ComputationState.QUEUED
    )
    computation = waiting.first()
    if computation is None:
        return None
    now = timezone.now()
    computation.state, computation.claim = ComputationState.RUNNING, uuid.uuid4()
    computation.started_at = computation.heard_at = now
    computation.save(update_fields=["state", "claim", "started_at", "heard_at"])
    return computation


def note_progress(computation: Computation, progress: dict[str, Any], answer: Any) -> bool:
    """Say how far the work is and that the worker lives; False where it should stop.

    It should stop when somebody asked for it, or when another worker has claimed it or it was deleted.
    """
    mine = Computation.objects.filter(
        pk=computation.pk, claim=computation.claim, state=ComputationState.RUNNING
    )
    values: dict[str, Any] = {"heard_at": timezone.now(), "progress": progress}
    if answer is not None:
        values["answer"] = answer
    return bool(mine.update(**values)) and not mine.filter(cancel_asked=True).exists()


def say_alive(computation: Computation) -> None:
    """Note that the worker is at it."""
    Computation.objects.filter(
        pk=computation.pk, claim=computation.claim, state=ComputationState.RUNNING
    ).update(heard_at=timezone.now())


@transaction.atomic
def finish(computation: Computation, answer: Any) -> None:
    """Keep the answer; cancelled where that was asked for meanwhile, with what was found."""
    mine = claimed(computation)
    if mine is None:
        return
    cancelled = mine.cancel_asked
    mine.state = ComputationState.CANCELLED if cancelled else ComputationState.DONE
    mine.answer, mine.finished_at = answer, timezone.now()
    mine.save(update_fields=["state", "answer", "finished_at"])
    record(mine.created_by, "finish", mine, team=mine.team, after={"state": mine.state})


@transaction.atomic
def give_up(computation: Computation, error: str) -> None:
    """The question cannot be answered: keep why."""
    mine = claimed(computation)
    if mine is None:
        return
    mine.state, mine.error, mine.finished_at = ComputationState.FAILED, error, timezone.now()
    mine.save(update_fields=["state", "error", "finished_at"])
    record(mine.created_by, "fail", mine, team=mine.team, after={"state": mine.state}, message=error)


def somebody_waits(but: Iterable[str]) -> bool:
    """Whether anything is queued `but` those kinds, which nobody waits for."""
    queued = Computation.objects.filter(state=ComputationState.QUEUED)
    return queued.exclude(kind__in=list(but)).exists()


def put_back(computation: Computation) -> None:
    """The worker shuts down or has something more urgent: the computation waits, and begins again."""
    Computation.objects.filter(
        pk=computation.pk, claim=computation.claim, state=ComputationState.RUNNING
    ).update(state=ComputationState.QUEUED, claim=None, sent_at=timezone.now() - timedelta(seconds=UNHEARD_S))


@transaction.atomic
def requeue_lost() -> int:
    """Send again what nobody is at: its worker was killed, or its message lost. Returns how many."""
    now = timezone.now()
    lost = Computation.objects.lost(
        silent=timedelta(seconds=SILENT_S), unheard=timedelta(seconds=UNHEARD_S)
    ).select_for_update(skip_locked=True)
    keys = list(lost.values_list("pk", flat=True))
    Computation.objects.filter(pk__in=keys).update(state=ComputationState.QUEUED, claim=None, sent_at=now)
    for pk in keys:
        transaction.on_commit(lambda pk=pk: _send(pk))  # type: ignore[misc]
    return len(keys)


def claimed(computation: Computation) -> Computation | None:
    """The row, locked, where this worker's claim still holds."""
    return (
        Computation.objects.select_for_update()
        .filter(pk=computation.pk, claim=computation.claim, state__in=OPEN)
        .first()
    )


def _send(pk: uuid.UUID) -> None:
    """Tell the search worker; where the broker is away, `requeue_lost` tells it later."""
    try:
        send_task("computations.compute", str(pk), queue="search")
    except (OperationalError, RedisError) as error:
        log.warning("computation waits for the broker", computation=str(pk), reason=str(error))


@transaction.atomic
def site_identity() -> str:
    """The id of this site's database, made at the first call."""
    row, _ = SiteIdentity.objects.get_or_create(pk=1)
    return str(row.identity)
