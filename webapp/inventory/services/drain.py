"""Draining: a node or a data centre is given no more work, and what runs there ends in good order."""

from typing import Any

from django.db import models, transaction
from django.utils import timezone

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.common.work import work
from webapp.inventory.models import DataCenter, Node


class DrainRuns(models.TextChoices):
    """What becomes of the runs that are there when a drain begins."""

    FINISH = "finish", "continue there to their end"
    MOVE = (
        "move",
        "end after an iteration and start again elsewhere, from their last checkpoint if there is one",
    )
    STOP = "stop", "end after an iteration and stay stopped"


@transaction.atomic
def drain(actor: Any, thing: Node | DataCenter, runs: str = DrainRuns.FINISH) -> int:
    """Give `thing` no more work from now on; returns how many runs were asked to end.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of its team.
    """
    choice = DrainRuns(runs)
    team = thing.dc.team if isinstance(thing, Node) else thing.team
    require(actor, team)
    if thing.draining_since is None:
        thing.draining_since = timezone.now()
        thing.save(update_fields=["draining_since"])
        after = {"draining_since": thing.draining_since.isoformat(), "runs": str(choice)}
        record(actor, "drain", thing, team=team, before={"draining_since": None}, after=after)
    if choice == DrainRuns.FINISH:
        return 0
    return work().end(actor, thing, choice == DrainRuns.MOVE)


@transaction.atomic
def resume(actor: Any, thing: Node | DataCenter) -> None:
    """Let `thing` be given work again. Raises PermissionDenied where `actor` is no operator of its team."""
    team = thing.dc.team if isinstance(thing, Node) else thing.team
    require(actor, team)
    if thing.draining_since is None:
        return
    before = {"draining_since": thing.draining_since.isoformat()}
    thing.draining_since = None
    thing.save(update_fields=["draining_since"])
    record(actor, "resume", thing, team=team, before=before, after={"draining_since": None})
