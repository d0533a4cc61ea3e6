"""The state of a run: the verbs that move it, and the marks that tell of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, Value, When
from django.utils import timezone

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.common import broker
from webapp.computations.models import Computation
from webapp.jobs import notify
from webapp.jobs.models import TERMINAL, Desired, MarkLevel, Run, RunEvent, Status

# What happened to a run that came into a state, as the audit log names it.
VERBS = {
    Status.QUEUED: "queue",
    Status.STARTING: "start",
    Status.RUNNING: "run",
    Status.STOPPING: "stop",
    Status.SUCCEEDED: "finish",
    Status.FAILED: "fail",
    Status.CANCELLED: "end",
}


@transaction.atomic
def cancel_run(actor: Any, run: Run) -> Run:
    """Want `run` stopped. What does not run yet is over at once; ranks are stopped by the reconciler."""
    require(actor, run.job.team)
    run = lock(run.pk)
    if not run.can_cancel:
        return run
    run.desired_state = Desired.CANCELLED
    run.save(update_fields=["desired_state"])
    record(
        actor,
        "cancel",
        run,
        team=run.job.team,
        before={"desired_state": Desired.RUNNING},
        after={"desired_state": Desired.CANCELLED},
    )
    add_mark(run, MarkLevel.INFO, f"Stop requested by {actor}." if actor else "Stop requested.")
    by = f"Stopped by {actor}." if actor else "Stopped."
    if run.search_id:
        Computation.objects.filter(pk=run.search_id).update(cancel_asked=True)
    set_status(run, Status.CANCELLED if run.status == Status.QUEUED else Status.STOPPING, by)
    if run.status == Status.STOPPING and not broker.health().ok:
        wait_for(run, "Waits for the broker, which does not answer: the GPUs will stop once it does")
    # Again when an agent that lives must have been heard of, and when ranks must have been killed.
    notify.reconcile_soon(0.0, *settings.STOP_LOOK_AGAIN_S)
    return run


@transaction.atomic
def finish_stopped(run: Run, silent: str = "") -> Run:
    """End a stopping `run` as stopped: none of its ranks is left, or `silent` names those not heard of."""
    run = lock(run.pk)
    if run.status == Status.STOPPING:
        set_status(run, Status.CANCELLED, f"{run.status_reason or 'Stopped.'} {silent}".strip())
        add_mark(run, MarkLevel.WARN if silent else MarkLevel.INFO, silent or "All ranks are gone.")
    return run


@transaction.atomic
def wait_for(run: Run, what: str, *, needs_action: bool = False) -> None:
    """Say what a queued or starting `run` waits for (empty: nothing), if that is news.

    `needs_action` where it does not come by itself.
    """
    values = {"waits_for": what[:300], "needs_action": needs_action}
    # Only while it is as the caller knows it: what has begun to run meanwhile waits for nothing.
    if Run.objects.open().filter(pk=run.pk, status=run.status).exclude(**values).update(**values):
        notify.run_changed(run.pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a queued run waits for; see `wait_for`."""

    run: Run
    what: str
    needs_action: bool = False

    @property
    def is_news(self) -> bool:
        """Whether the run as it was read says something else."""
        return (self.run.waits_for, self.run.needs_action) != (self.what[:300], self.needs_action)


@transaction.atomic
def wait_in_queue(waiting: Iterable[Waiting]) -> None:
    """Say what queued runs wait for, as `wait_for` does, in one statement for all of which it is news."""
    news = [each for each in waiting if each.is_news]
    if not news:
        return
    cases = [When(pk=each.run.pk, then=Value(each.what[:300])) for each in news]
    acting = When(pk__in=[each.run.pk for each in news if each.needs_action], then=Value(True))
    queued = Run.objects.filter(pk__in=[each.run.pk for each in news], status=Status.QUEUED)
    # Locked by id, as by who moves runs in the queue: else the two could wait for each other.
    list(queued.select_for_update().order_by("pk").values_list("pk"))
    queued.update(waits_for=Case(*cases), needs_action=Case(acting, default=Value(False)))
    for each in news:
        notify.run_changed(each.run.pk)


def lock(run_id: int) -> Run:
    """The run, locked until the end of the transaction."""
    return Run.objects.select_for_update(of=("self",)).select_related("job__team").get(pk=run_id)


def set_status(run: Run, status: Status, reason: str) -> None:
    """Move a locked `run` on. Terminal states are never left."""
    if run.is_over:
        raise ValueError(f"{run} is {run.status} and stays so")
    now, before = timezone.now(), run.status
    run.status, run.status_reason, run.waits_for, run.status_since = status, reason[:500], "", now
    run.needs_action = False
    run.finished_at = now if status in TERMINAL else None
    fields = ["status", "status_reason", "waits_for", "needs_action", "status_since", "finished_at"]
    run.save(update_fields=fields)
    record(
        None,
        VERBS[status],
        run,
        team=run.job.team,
        before={"status": before},
        after={"status": status},
        message=reason,
    )
    notify.run_changed(run.pk)


def add_mark(
    run: Run, level: MarkLevel, text: str, at: datetime | None = None, *, cost: dict[str, Any] | None = None
) -> RunEvent:
    """Tell something of `run` on its page; numbered in order without gaps.

    cost : of an incident (webapp/jobs/incidents.py).
    """
    Run.objects.filter(pk=run.pk).update(mark_seq=F("mark_seq") + 1)
    seq = Run.objects.values_list("mark_seq", flat=True).get(pk=run.pk)
    return RunEvent.objects.create(
        run=run, seq=seq, at=at or timezone.now(), level=level, text=text[:600], cost=cost or {}
    )


def add_mark_once(
    run: Run, level: MarkLevel, text: str, t: float, *, cost: dict[str, Any] | None = None
) -> bool:
    """Add the mark of an event, unless the same event made it before; whether it was news.

    t : of the event, Unix seconds.
    """
    at, text = datetime.fromtimestamp(t, UTC), text[:600]
    is_new = not RunEvent.objects.filter(run=run, at=at, text=text).exists()
    if is_new:
        add_mark(run, level, text, at, cost=cost)
    return is_new
