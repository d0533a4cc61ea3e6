"""Runs that end: after a whole iteration, failed, or on their way to other nodes."""

from typing import Any

from django.db import transaction

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.jobs import incidents, notify
from webapp.jobs.models import Desired, MarkLevel, Run, Status
from webapp.jobs.services.launch import launch_run
from webapp.jobs.services.status import add_mark, cancel_run, lock, set_status


@transaction.atomic
def stop_at_boundary(actor: Any, run: Run, *, why: str, again: bool) -> bool:
    """Have `run` end after a whole iteration because of `why`; whether it was news.

    A run that has computed nothing yet is stopped at once. With `again` its job is queued again when it has
    ended: the next generation, from its last checkpoint, or where it saves none from the first iteration.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of its team.
    """
    require(actor, run.job.team)
    run = lock(run.pk)
    if not run.can_cancel or run.status == Status.QUEUED or run.boundary_why:
        return False
    run.boundary_why, run.again = why[:200], again
    run.save(update_fields=["boundary_why", "again"])
    after = {"boundary": True, "again": again}
    record(
        actor,
        "stop-at-boundary",
        run,
        team=run.job.team,
        before={"boundary": False},
        after=after,
        message=why,
    )
    if run.status == Status.STARTING:
        cancel_run(actor, run)
        go_on_elsewhere(run)
        return True
    add_mark(run, MarkLevel.INFO, f"{why}: ends after a complete iteration.")
    notify.run_changed(run.pk)
    notify.reconcile_soon()
    return True


@transaction.atomic
def record_boundary(run: Run, iteration: int) -> None:
    """Note the iteration after which rank 0 said that all will end."""
    news = Run.objects.open().filter(pk=run.pk, stop_after=None).exclude(boundary_why="")
    if iteration >= 0 and news.update(stop_after=iteration):
        add_mark(run, MarkLevel.INFO, f"All ranks end after iteration {iteration + 1:,}.")
        notify.run_changed(run.pk)


def finish(run: Run) -> None:
    """End a locked `run` of which all ranks have finished: as succeeded, or stopped at a boundary."""
    early = run.boundary_why and run.stop_after is not None and run.stop_after + 1 < run.steps
    if not early:
        set_status(run, Status.SUCCEEDED, f"All {run.steps:,} iterations are done.")
        add_mark(run, MarkLevel.INFO, "Finished.")
        return
    run.desired_state = Desired.CANCELLED
    run.save(update_fields=["desired_state"])
    iterations = (run.stop_after or 0) + 1
    set_status(
        run, Status.CANCELLED, f"Ended after iteration {iterations:,} of {run.steps:,}: {run.boundary_why}."
    )
    add_mark(run, MarkLevel.INFO, f"Ended after iteration {iterations:,}.")
    go_on_elsewhere(run)


@transaction.atomic
def fail_run(run: Run, reason: str) -> Run:
    """End `run` as failed with `reason`; a run that is over stays as it ended."""
    run = lock(run.pk)
    if not run.is_over:
        set_status(run, Status.FAILED, reason)
        cost = {} if run.moves else incidents.failure(reason, done=run.done, saved=run.saved_step)
        add_mark(run, MarkLevel.ERROR, reason, cost=cost)
        go_on_elsewhere(run)  # on its way to other nodes: that wish outlives the failure
        notify.reconcile_soon()
    return run


@transaction.atomic
def forget_stopped_work(reason: str) -> list[Run]:
    """Fail every run that has ranks: the whole installation was down and they with it. Returns those runs.

    What was shut down in order has ended before by what they reported; what is queued stays so.
    """
    return [fail_run(run, reason) for run in Run.objects.open().exclude(status=Status.QUEUED)]


def go_on_elsewhere(run: Run) -> Run | None:
    """Queue the job of a locked `run` that is to move, once; None where it is not."""
    if not run.again:
        return None
    run.again = False
    run.save(update_fields=["again"])
    return launch_run(None, run.job, after=run)
