"""Runs that go on after a failure or with another plan: what nodes say of it, and lost machines that are
started again."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from engine.job.adapt.sentences import described, moved, smaller_layout
from engine.job.events.incidents import Adapted, LayoutChanged, NewLayout, Recovery
from webapp.inventory.models import silence
from webapp.jobs import incidents, notify
from webapp.jobs.models import RANK_OVER, Desired, MarkLevel, RankState, RankStatus, Run, Status
from webapp.jobs.prediction import Rows, measured_payload, predicted_payload, present_job
from webapp.jobs.reserve import keeps_reserve
from webapp.jobs.services.boundary import fail_run
from webapp.jobs.services.predictions import predict_as_begun, record_prediction
from webapp.jobs.services.status import add_mark, add_mark_once, lock


@transaction.atomic
def record_recovery(run: Run, event: Recovery) -> bool:
    """Take in a `recovery` event of `run` as a mark: what failed and what it cost; whether it was news."""
    iteration, noticed = event.iteration, event.detected_s
    silence = f" after {noticed:.1f} s of silence" if noticed else ""
    text = (
        f"Recovered: continues with iteration {iteration + 1:,} {incidents.FROM[event.source]}; "
        f"{event.lost_s:.1f} s were lost. Cause{silence}: {event.detail}"
    )
    if event.layout is not None:
        text = f"{smaller_layout(event.layout)} {text}"
    cost = incidents.recovery(event, done=run.done)
    if not add_mark_once(run, MarkLevel.WARN, text, event.t, cost=cost):
        return False
    if event.layout is not None:
        cut_run(run, iteration, event.layout)
    else:
        predict_as_begun(run, iteration)
    dismiss_ranks(run, event.left or ())
    notify.run_changed(run.pk)
    return True


@transaction.atomic
def record_adapted(run: Run, event: Adapted) -> bool:
    """Take in an `adapted` event of `run`: a mark, and another prediction; whether it was news."""
    cost = incidents.adaptation(event)
    if not add_mark_once(run, MarkLevel.WARN, described(event), event.t, cost=cost):
        return False
    at_present = present_job(run)
    if at_present is not None and event.schedule is not None and event.times is not None:
        document, position_of_rank = at_present
        record_prediction(
            run,
            event.iteration,
            measured_payload(document, event.schedule, event.times, position_of_rank=position_of_rank),
        )
    notify.run_changed(run.pk)
    return True


@transaction.atomic
def record_layout_changed(run: Run, event: LayoutChanged) -> bool:
    """Take in a `layout_changed` event of `run`: a mark, the layout, a prediction; whether it was news."""
    cost = incidents.layout_change(event, done=run.done)
    if not add_mark_once(run, MarkLevel.WARN, moved(event), event.t, cost=cost):
        return False
    cut_run(run, event.iteration, event.layout, event.times)
    dismiss_ranks(run, event.left or ())
    notify.run_changed(run.pk)
    return True


def dismiss_ranks(run: Run, ranks: Iterable[int]) -> None:
    """These are out of the run for good: nobody waits for them or starts them again; their GPUs are free.

    Where the run holds GPUs in reserve, they stay in it.
    """
    left = RankState.objects.filter(run=run, rank__in=ranks).exclude(state__in=RANK_OVER)
    if keeps_reserve(run.job.document):
        left.filter(state=RankStatus.RUNNING).update(state=RankStatus.READY, state_since=timezone.now())
        return
    left.update(state=RankStatus.FINISHED, state_since=timezone.now(), detail="The run continued without it.")


@transaction.atomic
def leave_reserve(run: Run, rank: RankState, why: str) -> None:
    """A GPU in reserve is out of the run, which does not use it."""
    ended = RankState.objects.filter(pk=rank.pk).exclude(state__in=RANK_OVER)
    if ended.update(state=RankStatus.FINISHED, state_since=timezone.now(), detail=why[:500]):
        add_mark(run, MarkLevel.WARN, f"GPU {rank.gpu} of {rank.node.name} left the reserve: {why}"[:600])
        notify.run_changed(run.pk)


def cut_run(run: Run, iteration: int, layout: NewLayout, times: Rows | None = None) -> None:
    """From `iteration` on `run` goes on in another layout; `times` are those that were measured for it."""
    ways = {rank: list(dcs) for rank, dcs in layout.dcs_of_rank.items()}
    cut: dict[str, Any] = {"iteration": iteration, "dcs_of_rank": ways}
    if layout.job is not None and layout.position_of_rank is not None:
        position_of_rank = {rank: list(position) for rank, position in layout.position_of_rank.items()}
        predicted = (
            measured_payload(layout.job, None, times, position_of_rank=position_of_rank)
            if times
            else predicted_payload(layout.job, position_of_rank=position_of_rank)
        )
        record_prediction(run, iteration, predicted)
        cut |= {"job": layout.job, "position_of_rank": position_of_rank}
    run.cuts = [*run.cuts, cut]
    run.save(update_fields=["cuts"])


@transaction.atomic
def bring_back(run: Run, lost_rank: RankState, why: str) -> bool:
    """Have the ranks of `run` on the machine of `gone`, which is lost, started again; whether they will be.

    Not where the job does not say so, nor more often than it says (recovery.attempts).
    """
    run = lock(run.pk)
    settings = run.recovery
    should_run = run.status == Status.RUNNING and run.desired_state == Desired.RUNNING
    if settings is None or not should_run or lost_rank.start > settings.attempts:
        return False
    RankState.objects.filter(run=run, node=lost_rank.node).update(
        state=RankStatus.ASSIGNED,
        state_since=timezone.now(),
        start=F("start") + 1,
        dispatched_at=None,
        detail=why[:500],
        exit_code=None,
        pid=None,
    )
    add_mark(run, MarkLevel.WARN, f"{lost_rank.node.name} lost its ranks: {why} They start again.")
    notify.run_changed(run.pk)
    notify.reconcile_soon()
    return True


@transaction.atomic
def fail_or_move(run: Run, reason: str) -> None:
    """End `run` as failed; where it lost the machine of its first rank, its job is to go on elsewhere.

    Not where the job does not say so (recovery, recovery.smaller), nor more often than it says.
    """
    run = lock(run.pk)
    settings = run.recovery
    should_run = run.status == Status.RUNNING and run.desired_state == Desired.RUNNING and not run.again
    if settings is not None and settings.smaller and should_run and _first_is_lost(run):
        run.moves = _moves_lately(run) < settings.attempts
        run.save(update_fields=["moves"])
        if not run.moves:
            reason = f"{reason} It has moved {settings.attempts} times within an hour (recovery.attempts)."
    fail_run(run, reason)


def _first_is_lost(run: Run) -> bool:
    """Whether nothing is heard from the node of the first rank, for as long as a run or the site waits."""
    first = run.ranks.select_related("node").order_by("rank").first()
    if first is None or run.recovery is None or first.node.last_seen is None:
        return False
    waited = min(silence(), timedelta(seconds=run.recovery.wait_s))
    return first.state not in RANK_OVER and timezone.now() - first.node.last_seen >= waited


def _moves_lately(run: Run) -> int:
    count, since = 0, timezone.now() - timedelta(hours=1)
    while run.moved_from is not None and run.created_at > since:
        count, run = count + 1, run.moved_from
    return count


@transaction.atomic
def settle_move(run: Run) -> bool:
    """Take `run` off the list of those that are to move; whether it was on it."""
    return bool(Run.objects.filter(pk=run.pk, moves=True).update(moves=False))
