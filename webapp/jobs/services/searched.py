"""Runs whose policy searches: they wait in the queue until the search worker has their schedule."""

from typing import Any

from django.db import transaction

from engine.schedule.registry import name_of
from webapp.accounts.services import record
from webapp.computations.models import ComputationKind
from webapp.computations.services import start
from webapp.jobs import notify
from webapp.jobs.models import MarkLevel, Run
from webapp.jobs.services.status import add_mark, lock
from webapp.planning.document import LONGEST_SEARCH_S


def ask_for_schedule(actor: Any, run: Run) -> None:
    """Have the search worker look for the schedule of `run`, which does not start before.

    Raises PermissionDenied where `actor` is no operator of the run's team.
    """
    run.search = start(
        actor,
        team=run.job.team,
        kind=ComputationKind.RUN,
        name=f"Schedule of {run}"[:80],
        request={"run": run.pk},
    )
    strategy = run.job.document["strategy"]
    limit_s = min(strategy.get("time_limit_s", LONGEST_SEARCH_S), LONGEST_SEARCH_S)
    policy = name_of(strategy["policy"])
    run.waits_for = f"Waits for its schedule: {policy}, a search of at most {limit_s:g} s"
    run.save(update_fields=["search", "waits_for"])


@transaction.atomic
def record_schedule(run: Run, document: dict[str, Any], predicted: dict[str, Any]) -> bool:
    """Keep the schedule that was found for `run` in its job; it may start. False where it has ended.

    document : of the job, with the schedule.  predicted : as of `Run`.
    """
    run = lock(run.pk)
    if run.is_over:
        return False
    job = run.job
    job.document = document
    job.save(update_fields=["document"])
    run.predicted, run.search, run.waits_for = predicted, None, ""
    run.save(update_fields=["predicted", "search", "waits_for"])
    message = f"Its schedule was found: predicted iteration {predicted['iteration_ms']:,.1f} ms."
    add_mark(run, MarkLevel.INFO, message)
    record(None, "schedule", run, team=job.team, after={"iteration_ms": predicted["iteration_ms"]})
    notify.run_changed(run.pk)
    notify.reconcile_soon()
    return True
