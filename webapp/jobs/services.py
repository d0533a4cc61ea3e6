"""Every change of a job or run: what people decide, and what nodes report. One transaction each."""

import secrets
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from engine.runtime.launch import EXIT_PEER_LOST
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.models import Node
from webapp.jobs import notify
from webapp.jobs.document import train_document
from webapp.jobs.models import (
    RANK_ORDER,
    RANK_OVER,
    TERMINAL,
    Desired,
    Job,
    MarkLevel,
    RankState,
    RankStatus,
    Run,
    RunEvent,
    Status,
)
from webapp.jobs.prediction import predicted_payload
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
        actor, "cancel", run, team=run.job.team,
        before={"desired_state": Desired.RUNNING}, after={"desired_state": Desired.CANCELLED},
    )  # fmt: skip
    add_mark(run, MarkLevel.INFO, f"Stop asked by {actor}." if actor else "Stop asked.")
    by = f"Stopped by {actor}." if actor else "Stopped."
    if run.status == Status.QUEUED:
        set_status(run, Status.CANCELLED, by)
    else:
        set_status(run, Status.STOPPING, by)
    notify.reconcile_soon()
    return run


@transaction.atomic
def fail_run(run: Run, reason: str) -> Run:
    """End `run` as failed with `reason`; a run that is over stays as it ended."""
    run = lock(run.pk)
    if not run.is_over:
        before = {"status": run.status}
        set_status(run, Status.FAILED, reason)
        add_mark(run, MarkLevel.ERROR, reason)
        record(
            None, "fail", run, team=run.job.team, before=before, after={"status": run.status}, message=reason
        )
        notify.reconcile_soon()
    return run


@transaction.atomic
def finish_stopped(run: Run) -> Run:
    """End a stopping `run` as stopped: none of its ranks is left."""
    run = lock(run.pk)
    if run.status == Status.STOPPING:
        set_status(run, Status.CANCELLED, run.status_reason or "Stopped.")
        add_mark(run, MarkLevel.INFO, "All ranks are gone.")
    return run


@transaction.atomic
def wait_for(run: Run, what: str) -> None:
    """Say what a queued or starting `run` waits for (empty: nothing), if that is news."""
    changed = Run.objects.filter(pk=run.pk).exclude(status__in=TERMINAL).exclude(waits_for=what[:300])
    if changed.update(waits_for=what[:300]):
        notify.run_changed(run.pk)


@transaction.atomic
def record_rank_event(run: Run, event: dict[str, Any]) -> bool:
    """Take in one `rank` event of `run`; returns whether it was news.

    A repeated event, one of a rank that is over and one that would go back in time change nothing.
    """
    rank = RankState.objects.select_for_update().filter(run=run, rank=event["rank"]).first()
    new = event.get("state")
    if (
        rank is None
        or new not in RANK_ORDER
        or rank.state in RANK_OVER
        or RANK_ORDER[RankStatus(new)] <= RANK_ORDER[RankStatus(rank.state)]
    ):
        return False
    rank.state = new
    rank.state_since = timezone.now()
    rank.detail = str(event.get("detail") or "")[:500]
    rank.exit_code = event["exit_code"] if isinstance(event.get("exit_code"), int) else None
    rank.pid = event["pid"] if isinstance(event.get("pid"), int) else rank.pid
    rank.save(update_fields=["state", "state_since", "detail", "exit_code", "pid"])
    _follow(run, rank)
    return True


def _follow(run: Run, rank: RankState) -> None:
    """What the new state of one rank means for its run."""
    run = lock(run.pk)
    if run.is_over:
        return
    if is_cause(rank) and run.desired_state == Desired.RUNNING:
        fail_run(run, rank_failure(rank))
        return
    states = set(run.ranks.values_list("state", flat=True))
    if run.status == Status.STARTING and states <= {RankStatus.RUNNING, RankStatus.FINISHED}:
        run.started_at = run.started_at or timezone.now()
        run.save(update_fields=["started_at"])
        set_status(run, Status.RUNNING, "")
        add_mark(run, MarkLevel.INFO, f"All {run.ranks.count()} ranks run.")
    elif run.status == Status.RUNNING and states == {RankStatus.FINISHED}:
        set_status(run, Status.SUCCEEDED, f"All {run.steps:,} iterations done.")
        add_mark(run, MarkLevel.INFO, "Finished.")
    elif run.status == Status.STOPPING and states <= set(RANK_OVER):
        finish_stopped(run)
    else:
        notify.run_changed(run.pk)


def is_cause(rank: RankState) -> bool:
    """Whether `rank` failed by itself, and not because it lost another rank, which will be heard of."""
    return rank.state == RankStatus.FAILED and rank.exit_code != EXIT_PEER_LOST


def rank_failure(rank: RankState) -> str:
    """Why a run failed whose `rank` died: that rank's own last line."""
    line = rank.detail or rank.last_line
    code = f" (exit {rank.exit_code})" if rank.exit_code is not None else ""
    return f"{place(rank)} failed{code}: {line}" if line else f"{place(rank)} failed{code} without a word."


def place(rank: RankState) -> str:
    """A rank as people know it: pipeline and stage from 1, GPU and node."""
    return f"P{rank.pipeline + 1} S{rank.stage + 1} (GPU {rank.gpu} of {rank.node.name})"


@transaction.atomic
def record_dispatch(run: Run, node: Node) -> None:
    """Note that `node` has been told to start its ranks of `run`."""
    ranks = RankState.objects.filter(run=run, node=node, state=RankStatus.ASSIGNED)
    ranks.update(dispatched_at=timezone.now(), dispatches=F("dispatches") + 1)


@transaction.atomic
def release_rank(run: Run, rank: RankState) -> None:
    """Give back the GPU of a rank whose run is over and which is surely gone."""
    live = RankState.objects.filter(pk=rank.pk, run__status__in=TERMINAL).exclude(state__in=RANK_OVER)
    if live.update(state=RankStatus.STOPPED, state_since=timezone.now()):
        notify.run_changed(run.pk)


@transaction.atomic
def record_progress(run: Run, *, iteration: int) -> None:
    """The last iteration of which anything was reported."""
    Run.objects.filter(pk=run.pk, iteration__lt=iteration).update(iteration=iteration)


@transaction.atomic
def record_result(run: Run, result: dict[str, Any]) -> None:
    """Keep what the run itself says of its outcome."""
    Run.objects.filter(pk=run.pk, result__isnull=True).update(result=result)


@transaction.atomic
def record_last_line(run: Run, rank: int, line: str) -> None:
    """Keep the last line that a rank wrote: should it die without saying why, this is the best there is."""
    RankState.objects.filter(run=run, rank=rank).update(last_line=line.strip()[:500])


@transaction.atomic
def next_live_seq(run_id: int) -> int:
    """Number the next message to the browsers of a run."""
    Run.objects.filter(pk=run_id).update(live_seq=F("live_seq") + 1)
    return Run.objects.values_list("live_seq", flat=True).get(pk=run_id)


@transaction.atomic
def forget_stopped_work(reason: str) -> list[Run]:
    """Fail every open run: the whole installation was down and with it their ranks. Returns them."""
    return [fail_run(run, reason) for run in Run.objects.open()]


def lock(run_id: int) -> Run:
    """The run, locked until the end of the transaction."""
    return Run.objects.select_for_update(of=("self",)).select_related("job__team").get(pk=run_id)


def set_status(run: Run, status: Status, reason: str) -> None:
    """Move a locked `run` on. Terminal states are never left."""
    if run.is_over:
        raise ValueError(f"{run} is {run.status} and stays so")
    now = timezone.now()
    run.status, run.status_reason, run.waits_for, run.status_since = status, reason[:500], "", now
    run.finished_at = now if status in TERMINAL else None
    run.save(update_fields=["status", "status_reason", "waits_for", "status_since", "finished_at"])
    notify.run_changed(run.pk)


def add_mark(run: Run, level: MarkLevel, text: str, at: datetime | None = None) -> RunEvent:
    """Tell something of `run` on its page; numbered in order without gaps."""
    Run.objects.filter(pk=run.pk).update(mark_seq=F("mark_seq") + 1)
    seq = Run.objects.values_list("mark_seq", flat=True).get(pk=run.pk)
    return RunEvent.objects.create(run=run, seq=seq, at=at or timezone.now(), level=level, text=text[:600])
