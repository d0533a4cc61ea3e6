"""The order in which runs that wait get their GPUs."""

from typing import Any

from django.db import transaction

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.jobs import notify
from webapp.jobs.models import MarkLevel, Priority, Run, Status
from webapp.jobs.services.status import add_mark, lock


@transaction.atomic
def set_priority(actor: Any, run: Run, priority: Priority) -> bool:
    """Give a queued `run` this priority; whether that changed it. One that is not queued stays as it is.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of its team.
    """
    require(actor, run.job.team)
    run = lock(run.pk)
    before = Priority(run.priority)
    if run.status != Status.QUEUED or before == priority:
        return False
    run.priority = priority
    run.save(update_fields=["priority"])
    record(
        actor,
        "prioritise",
        run,
        team=run.job.team,
        before={"priority": before.label},
        after={"priority": priority.label},
    )
    by = f" by {actor}" if actor else ""
    add_mark(run, MarkLevel.INFO, f"Priority set to {priority.label.lower()}{by}.")
    notify.run_changed(run.pk)
    notify.reconcile_soon()
    return True
