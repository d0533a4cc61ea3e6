"""New runs: of a plan, again, and of a changed job."""

import secrets
from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.utils import timezone

from engine.errors import InputError
from engine.inputs import parse
from engine.job.changed import fields_of
from engine.job.job import TrainJob
from engine.job.planned import wants_search
from engine.job.swap.planned import planned
from webapp.accounts.models import Team
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.common.asked_once import once
from webapp.computations.models import Computation
from webapp.jobs import notify
from webapp.jobs.gpu_inventory import GpuOfRank
from webapp.jobs.models import Job, MarkLevel, Priority, Run
from webapp.jobs.prediction import predicted_payload
from webapp.jobs.services.searched import ask_for_schedule
from webapp.jobs.services.status import add_mark
from webapp.placement.options import placed_plan
from webapp.placement.placed import PlacedJob
from webapp.planning.document import ruled_document, site_job, train_document
from webapp.planning.models import Plan

REPLICAS = " (data parallelism)"  # ends the name of a job of the data parallelism next to a plan
FEWER = " (fewer GPUs)"  # ends the name of a job that a run's job became when a machine was lost


@transaction.atomic
def launch_plan(
    actor: Any,
    plan: Plan,
    option_index: int,
    *,
    name: str = "",
    document: dict[str, Any] | None = None,
    key: str = "",
    priority: int = Priority.NORMAL,
) -> Run:
    """Make a job of one option of `plan` and its first run.

    Parameters
    ----------
    name, document : of the job, where they are not the plan's name and what the option gives.
    key : idempotency key: the run that `actor` has asked for with the same key before is returned.
    priority : of the run in the queue.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the plan's team.
    InputError
        The option cannot be run; says why.
    """
    require(actor, plan.team)
    return _once(actor, key, lambda: _launch_option(actor, plan, option_index, name, document, key, priority))


@transaction.atomic
def launch_placement(
    actor: Any,
    placement: Computation,
    *,
    name: str,
    placed: PlacedJob,
    key: str = "",
    priority: int = Priority.NORMAL,
) -> Run:
    """Make a job called `name` whose ranks are where `placement` says, and its first run. See `launch_plan`.

    Parameters
    ----------
    placed : the job of the placement (`placed_job`), or one with other values and the same ranks.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the placement's team.
    InputError
        The engine refuses the document; says why.
    """
    require(actor, placement.team)
    return _once(actor, key, lambda: _launch_placed(actor, placement, name, placed, key, priority))


@transaction.atomic
def launch_swap(
    actor: Any,
    team: Team,
    *,
    name: str,
    document: dict[str, Any],
    key: str = "",
    priority: int = Priority.NORMAL,
) -> Run:
    """Make a job of workers that swap, and its first run. See `launch_plan`.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of `team`.
    InputError
        The engine refuses the document, or the model does not fit the GPU.
    """
    require(actor, team)
    planned(site_job(document))
    after = {"name": name, "strategy": document["strategy"]["kind"]}
    fields: dict[str, Any] = {"team": team, "name": name, "document": document, "plan_copy": {"name": name}}
    return _once(actor, key, lambda: _new_job(actor, key, priority=priority, after=after, **fields))


@transaction.atomic
def launch_replicas(
    actor: Any, plan: Plan, data: dict[str, Any], document: dict[str, Any], *, key: str = ""
) -> Run:
    """Make a job of the data parallelism with which `plan` was compared, and its first run. See
    `launch_plan`.

    Parameters
    ----------
    data, document : of the comparison, and the document of `meridian train` that it gives.
    """
    require(actor, plan.team)
    return _once(actor, key, lambda: _launch_replicas(actor, plan, data, document, key))


@transaction.atomic
def launch_run(actor: Any, job: Job, *, key: str = "", after: Run | None = None) -> Run:
    """Queue a run of `job`, one generation after its last; the reconciler starts it. See `launch_plan`.

    Parameters
    ----------
    after : a run of the job from whose last checkpoint the new one goes on, if it has saved any.
    """
    require(actor, job.team)
    return _once(actor, key, lambda: _queue(actor, job, key, after=after))


@transaction.atomic
def retry_run(actor: Any, run: Run, *, key: str = "", resume: bool = False) -> Run:
    """Queue the job of `run` again: the same document, the next generation.

    Parameters
    ----------
    resume : go on from the last checkpoint of `run`; else from where the job's document begins.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the job's team.
    InputError
        A run of the job has not ended, or there is no checkpoint to go on from.
    """
    require(actor, run.job.team)
    return _once(actor, key, lambda: _retry(actor, run, key, resume=resume))


@transaction.atomic
def clone_run(
    actor: Any,
    run: Run,
    *,
    name: str,
    document: dict[str, Any],
    key: str = "",
    priority: int = Priority.NORMAL,
) -> Run:
    """Make a job called `name` of `document`, which somebody changed from that of `run`, and queue it.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the job's team.
    InputError
        The engine refuses the document.
    """
    require(actor, run.job.team)
    ruled = ruled_document(document)
    return _once(actor, key, lambda: _clone(actor, run, name, ruled, key, priority))


@transaction.atomic
def move_run(
    run: Run, reason: str, smaller: dict[str, Any] | None = None, gpu_of_rank: GpuOfRank = ()
) -> Run:
    """Queue what takes the place of `run`, which lost its first machine, from its last checkpoint.

    Parameters
    ----------
    told : what is said of it on the new run's page.
    smaller : the document of a smaller layout; None: the job as it is.
    gpu_of_rank : of the smaller layout, where the job is placed.
    """
    job = run.job
    if smaller is not None:
        site_job(smaller)
        job = Job.objects.create(
            team=job.team,
            name=job.name if job.name.endswith(FEWER) else f"{job.name[: 80 - len(FEWER)]}{FEWER}",
            document=smaller,
            plan=job.plan,
            gpu_of_rank=list(gpu_of_rank),
            plan_copy=_copy_from(run),
        )
        before, after = _difference(run.job.document, smaller)
        record(None, "clone", job, team=job.team, before=before, after={"name": job.name, **after})
    return _queue(None, job, "", reason, after=run, moved_from=run)


def _once(actor: Any, key: str, make: Callable[[], Run]) -> Run:
    """The run that `actor` asked for with `key` before, else a new one; two at once get the same."""
    return once(actor, Run.objects.select_related("job"), key, make)


def _launch_option(
    actor: Any,
    plan: Plan,
    option_index: int,
    name: str,
    changed: dict[str, Any] | None,
    key: str,
    priority: int,
) -> Run:
    option = plan.result["options"][option_index]
    planned = train_document(plan.request, option, plan.training)
    document = ruled_document(changed or planned)
    copy = {"name": plan.name, "request": plan.request, "option": option}
    _, differs = _difference(planned, document)
    return _new_job(
        actor,
        key,
        priority=priority,
        after={"plan": plan.name, "dp_cells": option["dp_cells"], **differs},
        team=plan.team,
        name=name or plan.name,
        document=document,
        plan=plan,
        plan_copy=copy,
    )


def _launch_replicas(actor: Any, plan: Plan, data: dict[str, Any], document: dict[str, Any], key: str) -> Run:
    name = f"{plan.name[: 80 - len(REPLICAS)]}{REPLICAS}"
    return _new_job(
        actor,
        key,
        after={"plan": plan.name, "name": name},
        team=plan.team,
        name=name,
        document=ruled_document(document),
        plan=plan,
        plan_copy={"name": plan.name, "request": plan.request, "data_parallelism": data},
    )


def _launch_placed(
    actor: Any, placement: Computation, name: str, placed: PlacedJob, key: str, priority: int
) -> Run:
    copy: dict[str, Any] = {"name": name, "placement": {"id": str(placement.pk), "name": placement.name}}
    planned = placed_plan(placement.request, Plan.objects.filter(team=placement.team))
    if planned:
        copy |= {"name": planned[0].name, "request": planned[0].request, "option": planned[1]}
    return _new_job(
        actor,
        key,
        priority=priority,
        reason=f"Placed by {placement.name}.",
        after={"placement": placement.name, "name": name},
        team=placement.team,
        name=name,
        document=ruled_document(placed.document),
        gpu_of_rank=placed.gpu_of_rank,
        plan=planned[0] if planned else None,
        plan_copy=copy,
    )


def _retry(actor: Any, run: Run, key: str, *, resume: bool) -> Run:
    Job.objects.select_for_update().get(pk=run.job_id)
    unfinished = run.job.runs.open().order_by("-generation").first()
    if unfinished:
        raise InputError("run", str(unfinished), f"is {unfinished.state.label.lower()}: stop it first")
    if resume and run.saved_step is None:
        raise InputError("resume", str(run), "has saved no checkpoint: use Retry to start from the beginning")
    return _queue(actor, run.job, key, f"Attempt after {run}.", after=run if resume else None)


def _clone(actor: Any, run: Run, name: str, document: dict[str, Any], key: str, priority: int) -> Run:
    old = run.job
    before, after = _difference(old.document, document)
    return _new_job(
        actor,
        key,
        priority=priority,
        reason=f"Copied from {run}.",
        verb="clone",
        before={"name": old.name, **before},
        after={"name": name, **after},
        team=old.team,
        name=name,
        document=document,
        plan=old.plan,
        gpu_of_rank=old.gpu_of_rank,
        plan_copy=_copy_from(run),
    )


def _copy_from(run: Run) -> dict[str, Any]:
    """The `plan_copy` of a job that is that of `run`, changed."""
    return {**run.job.plan_copy, "changed_from": {"run": run.pk, "name": str(run)}}


def _new_job(
    actor: Any,
    key: str,
    *,
    after: dict[str, Any],
    before: dict[str, Any] | None = None,
    verb: str = "create",
    reason: str = "",
    priority: int = Priority.NORMAL,
    **fields: Any,
) -> Run:
    """Make a job of `fields`, note that, and queue its first run.

    verb, before, after : of the audit row.
    reason : what is said of it on the run's page.
    """
    job = Job.objects.create(created_by=actor, **fields)
    record(actor, verb, job, team=job.team, before=before, after=after)
    return _queue(actor, job, key, reason, priority=priority)


def _difference(old: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that differ, by their path in the document, before and after."""
    before, after = fields_of(old), fields_of(new)
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return {path: before.get(path) for path in paths}, {path: after.get(path) for path in paths}


def _queue(
    actor: Any,
    job: Job,
    key: str,
    reason: str = "",
    *,
    after: Run | None = None,
    moved_from: Run | None = None,
    priority: int = Priority.NORMAL,
) -> Run:
    Job.objects.select_for_update().get(pk=job.pk)  # two launches at once: two generations
    last = job.runs.order_by("-generation").values_list("generation", flat=True).first() or 0
    saved = after if after is not None and after.saved_step is not None else None
    searched = wants_search(parse(TrainJob, job.document))
    run = Run.objects.create(
        job=job,
        generation=last + 1,
        status_since=timezone.now(),
        priority=priority if after is None else after.priority,
        steps=job.document["optimizer"]["steps"],
        secret=secrets.token_hex(32),
        predicted={} if searched else predicted_payload(job.document),
        created_by=actor,
        idempotency_key=key,
        moved_from=moved_from,
        resumes_step=saved.saved_step if saved else None,
        resumes_from=saved.saved_where if saved else "",
        saved_step=saved.saved_step if saved else None,
        saved_where=saved.saved_where if saved else "",
    )
    reason = f"{reason} Continues after iteration {saved.saved_step:,}.".strip() if saved else reason
    state = {"desired_state": run.desired_state, "generation": run.generation, "steps": run.steps}
    record(actor, "launch", run, team=job.team, after=state, message=reason)
    by = f"Launched by {actor}." if actor else "Launched."
    add_mark(run, MarkLevel.INFO, f"{by} {reason}".strip())
    if searched:
        ask_for_schedule(actor, run)
    notify.run_changed(run.pk)
    notify.reconcile_soon()
    return run
