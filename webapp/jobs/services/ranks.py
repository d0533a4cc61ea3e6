"""What nodes report of the ranks of a run, and what it means for the run."""

from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from engine.job.events.training import Rank
from engine.job.events.training import RankState as Reported
from webapp.inventory.models import Node
from webapp.jobs import notify
from webapp.jobs.models import (
    RANK_ORDER,
    RANK_OVER,
    TERMINAL,
    Desired,
    MarkLevel,
    RankState,
    RankStatus,
    Run,
    Status,
)
from webapp.jobs.reserve import in_reserve
from webapp.jobs.services.boundary import fail_run, finish, go_on_elsewhere
from webapp.jobs.services.link_rates import record_link_rates
from webapp.jobs.services.rank_words import is_cause, rank_failure
from webapp.jobs.services.recovery import bring_back, fail_or_move, leave_reserve
from webapp.jobs.services.status import add_mark, finish_stopped, lock, set_status
from webapp.jobs.services.workers import end_without_workers


@transaction.atomic
def record_rank_event(run: Run, event: Rank) -> bool:
    """Take in one `rank` event of `run`; returns whether it was news.

    A repeated event, one of a rank that is over and one that would go back in time change nothing. A rank
    that is gone with its host or agent is started again where its job recovers. A pipeline's rank is out of
    the run when the run says so (`dismiss_ranks`), a worker that swaps when its node does. One in reserve
    counts as ready; where it ends, the run goes on without it.
    """
    rank = RankState.objects.select_for_update().filter(run=run, rank=event.rank).first()
    if (
        rank is None
        or (event.state is Reported.LEFT and not run.job.swaps)
        or rank.state in RANK_OVER
        or (event.start or 1) < rank.start
        or RANK_ORDER[_status(event)] <= RANK_ORDER[RankStatus(rank.state)]
    ):
        return False
    if event.gone and bring_back(run, rank, event.detail or "without a reason"):
        return True
    if event.state in (Reported.FAILED, Reported.STOPPED) and rank.rank in in_reserve(run):
        leave_reserve(run, rank, event.detail or "without a reason")
        return True
    # A run of workers that swap goes on without one whose host is gone.
    leaves = event.gone and run.job.swaps and run.status == Status.RUNNING
    rank.state = RankStatus.LEFT if leaves else _status(event)
    rank.state_since = timezone.now()
    rank.detail = event.detail[:500]
    rank.exit_code = event.exit_code
    rank.pid = rank.pid if event.pid is None else event.pid
    rank.save(update_fields=["state", "state_since", "detail", "exit_code", "pid"])
    _follow(run, rank)
    return True


def _status(event: Rank) -> RankStatus:
    """The state of a rank as it is stored: one in reserve is ready, and the run's layout tells the rest."""
    return RankStatus.READY if event.state is Reported.RESERVE else RankStatus(event.state)


def _follow(run: Run, rank: RankState) -> None:
    """What the new state of one rank means for its run."""
    run = lock(run.pk)
    if run.is_over:
        return
    if is_cause(rank) and run.desired_state == Desired.RUNNING:
        # An error of its own would end the next attempt the same way; killed or given up it was for another.
        own = rank.exit_code is not None and rank.exit_code > 0
        (fail_run if own else fail_or_move)(run, rank_failure(rank))
        return
    ranks = run.ranks.exclude(rank__in=in_reserve(run))
    states = set(ranks.values_list("state", flat=True))
    if run.status == Status.STARTING and RankStatus.LEFT in states:
        fail_run(run, rank_failure(rank))
        return
    if run.status == Status.STARTING and states <= {RankStatus.RUNNING, RankStatus.FINISHED}:
        run.started_at = run.started_at or timezone.now()
        run.save(update_fields=["started_at"])
        set_status(run, Status.RUNNING, "")
        add_mark(run, MarkLevel.INFO, f"All {ranks.count()} ranks are running.")
    elif run.status == Status.RUNNING and states == {RankStatus.FINISHED}:
        finish(run)
    elif run.status == Status.RUNNING and states == {RankStatus.FINISHED, RankStatus.LEFT}:
        end_without_workers(run)
    elif run.status == Status.STOPPING and not run.ranks.exclude(state__in=RANK_OVER).exists():
        finish_stopped(run)
    elif RankStatus.STOPPED in states and states <= set(RANK_OVER):
        _end_with_agents(run)
    else:
        notify.run_changed(run.pk)


def _end_with_agents(run: Run) -> None:
    """End a locked `run` whose ranks are over, stopped by agents that nobody here asked to.

    All agents shut down is what Ctrl-C does with the whole of a site on one machine: the run was stopped.
    Some of them: somebody took nodes away from it, and it failed. None, where ranks only lost each other:
    then the reconciler says which was first.
    """
    nodes = set(run.ranks.exclude(state=RankStatus.LEFT).values_list("node__name", flat=True))
    lost = set(run.ranks.filter(state=RankStatus.FAILED).values_list("node__name", flat=True))
    shut = nodes - lost
    if not shut:
        notify.run_changed(run.pk)
    elif lost:
        names = ", ".join(sorted(shut))
        agents = f"The agent of {names} was" if len(shut) == 1 else f"The agents of {names} were"
        fail_run(run, f"{agents} shut down, so the ranks on other nodes lost their peers.")
    else:
        _stopped_with_agents(run, sorted(nodes))


def _stopped_with_agents(run: Run, nodes: list[str]) -> None:
    agents = (
        f"the agent of {nodes[0]} was" if len(nodes) == 1 else f"the agents of its {len(nodes)} nodes were"
    )
    progress = f"after iteration {run.done:,} of {run.steps:,}" if run.done else "before its first iteration"
    run.desired_state = Desired.CANCELLED
    run.save(update_fields=["desired_state"])
    set_status(run, Status.CANCELLED, f"Stopped {progress}: {agents} shut down, and its ranks with them.")
    add_mark(run, MarkLevel.WARN, f"T{agents[1:]} shut down: all ranks ended.")
    go_on_elsewhere(run)


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
    """The last iteration of which anything was reported, and when that became a later one."""
    later = Run.objects.filter(pk=run.pk, iteration__lt=iteration)
    later.update(iteration=iteration, progressed_at=timezone.now())


@transaction.atomic
def record_ended_iteration(run: Run, iteration: int) -> None:
    """A rank has ended `iteration`. The first rank has not spoken of it: perhaps it cannot be heard."""
    Run.objects.filter(pk=run.pk, iteration__lt=iteration).update(progressed_at=timezone.now())


@transaction.atomic
def record_result(run: Run, result: dict[str, Any]) -> None:
    """Keep what the run itself says of its outcome, and of its links."""
    if Run.objects.filter(pk=run.pk, result__isnull=True).update(result=result):
        record_link_rates(run, result)


@transaction.atomic
def record_last_line(run: Run, rank: int, line: str) -> None:
    """Keep the last line that a rank wrote: should it die without saying why, this is the best there is."""
    RankState.objects.filter(run=run, rank=rank).update(last_line=line.strip()[:500])


@transaction.atomic
def next_live_seq(run_id: int) -> int:
    """Number the next message to the browsers of a run."""
    Run.objects.filter(pk=run_id).update(live_seq=F("live_seq") + 1)
    return Run.objects.values_list("live_seq", flat=True).get(pk=run_id)
