"""New runs: of a plan, and again."""

import secrets
from typing import Any

from django.db import transaction
from django.utils import timezone

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.jobs import notify
from webapp.jobs.document import train_document
from webapp.jobs.models import Job, MarkLevel, Run
from webapp.jobs.prediction import predicted_payload
from webapp.jobs.services.status import add_mark
from webapp.planning.models import Plan


@transaction.atomic
def launch_plan(actor: Any, plan: Plan, option_index: int) -> Run:
    """Make a job of one option of `plan` and its first run.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the plan's team.
    InputError
        The option cannot be run; says why.
    """
    require(actor, plan.team)
    option = plan.result["options"][option_index]
    document = train_document(plan.request, option, plan.training or {})
    copy = {"name": plan.name, "request": plan.request, "option": option}
    job = Job.objects.create(
        team=plan.team, name=plan.name, document=document, plan=plan, plan_copy=copy, created_by=actor
    )
    record(actor, "create", job, team=plan.team, after={"plan": plan.pk, "dp_cells": option["dp_cells"]})
    return launch_run(actor, job)


@transaction.atomic
def launch_run(actor: Any, job: Job) -> Run:
    """Queue a run of `job`, one generation after its last; the reconciler starts it."""
    require(actor, job.team)
    Job.objects.select_for_update().get(pk=job.pk)  # two launches at once: two generations
    last = job.runs.order_by("-generation").values_list("generation", flat=True).first() or 0
    run = Run.objects.create(
        job=job,
        generation=last + 1,
        status_since=timezone.now(),
        steps=job.document["steps"],
        secret=secrets.token_hex(32),
        predicted=predicted_payload(job.document),
        created_by=actor,
    )
    record(actor, "launch", run, team=job.team, after={"desired_state": run.desired_state})
    add_mark(run, MarkLevel.INFO, f"Launched by {actor}." if actor else "Launched.")
    notify.run_changed(run.pk)
    notify.reconcile_soon()
    return run
