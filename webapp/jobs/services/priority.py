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


@transaction.atomic
def move_in_queue(actor: Any, run: Run, *, up: bool) -> bool:
    """Swap a queued `run` with the one before it, or after it, of its team and priority; whether it did.

    Two that move runs at once do so one after the other.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the run's team.
    """
    require(actor, run.job.team)
    run = Run.objects.select_related("job__team").get(pk=run.pk)  # its priority as it is now
    same = Run.objects.filter(job__team=run.job.team, priority=run.priority)
    queue = same.in_queue().only("queue_order", "priority", "status")
    # Locked in one order, that of their ids: nobody waits for somebody who waits for them.
    locked = queue.select_for_update(of=("self",)).order_by("pk")
    rows = sorted(locked, key=lambda row: row.order)
    at = next((at for at, row in enumerate(rows) if row.pk == run.pk), None)
    if at is None or not 0 <= (to := at - 1 if up else at + 1) < len(rows):
        return False
    above = Run.objects.in_queue().filter(job__team=run.job.team, priority__gt=run.priority)
    before = above.count() + at + 1
    for row, order in ((rows[at], rows[to].order), (rows[to], rows[at].order)):
        row.queue_order = order
        row.save(update_fields=["queue_order"])
    after = before - 1 if up else before + 1
    record(actor, "move", run, team=run.job.team, before={"position": before}, after={"position": after})
    by = f" by {actor}" if actor else ""
    add_mark(run, MarkLevel.INFO, f"Moved to position {after} of the queue{by}.")
    notify.run_changed(run.pk)
    notify.run_changed(rows[to].pk)
    notify.reconcile_soon()
    return True
