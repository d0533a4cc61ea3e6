"""Putting away what a team has made, and bringing it back."""

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from webapp.accounts.permissions import require
from webapp.accounts.services.audit import record


class Busy(Exception):
    """Something is at work and can be neither archived nor deleted now; the message says which and why."""


def locked(actor: Any, rows: QuerySet[Any]) -> list[Any]:
    """The things of `rows`, locked until the transaction ends; `actor` may change them and none is busy.

    Parameters
    ----------
    rows : archivable ones (webapp.common.archived).

    Raises
    ------
    PermissionDenied
        `actor` is no operator of one of their teams.
    Busy
        One of them is at work.
    """
    things = list(rows.select_for_update(of=("self",)))
    for team in {thing.team for thing in things}:
        require(actor, team)
    if why := next((thing.busy for thing in things if thing.busy), ""):
        raise Busy(why)
    return things


@transaction.atomic
def archive(actor: Any, rows: QuerySet[Any]) -> int:
    """Archive those of `rows` that are not; returns how many. Raises as `locked`."""
    things = [thing for thing in locked(actor, rows) if thing.archived_at is None]
    now = timezone.now()
    for thing in things:
        thing.archived_at = now
        thing.save(update_fields=["archived_at"])
        record(actor, "archive", thing, team=thing.team, after={"archived_at": now.isoformat()})
    return len(things)


@transaction.atomic
def restore(actor: Any, rows: QuerySet[Any]) -> int:
    """Bring back those of `rows` that are archived; returns how many. Raises as `locked`."""
    things = [thing for thing in locked(actor, rows) if thing.archived_at is not None]
    for thing in things:
        before, thing.archived_at = {"archived_at": thing.archived_at.isoformat()}, None
        thing.save(update_fields=["archived_at"])
        record(actor, "restore", thing, team=thing.team, before=before)
    return len(things)
