"""Closing the difference between what should be and what is: run every 2 s, and at once after a decision.

Every step is idempotent under (run, generation): it may be repeated, overlap with another, or be cut off.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.utils import timezone

from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment, gpu_in_reserve
from engine.job.shape import shape_of
from webapp.computations import liveness
from webapp.inventory.dispatch import BrokerDown, Send
from webapp.inventory.models import Node, NodeState, silence
from webapp.jobs import services
from webapp.jobs.allocate import extend_reserve
from webapp.jobs.models import RANK_OVER, RankState, RankStatus, Run, Status
from webapp.jobs.moving import move_on
from webapp.jobs.queue import Queue
from webapp.jobs.reserve import in_reserve

log = structlog.get_logger(__name__)
# Of a run, what others may have changed since this round began.
CHANGING = [
    "status",
    "status_since",
    "rendezvous_port",
    "desired_state",
    "boundary_why",
    "stop_after",
    "progressed_at",
]
LATE_ITERATIONS = 3  # as predicted: within so many the next one has ended, or the run does not train
# From the loss of a machine until the tracker of workers that swap has said so: its silence (20 s), if it was
# the tracker's own the election of another and the return of the workers (6 + 15 s), and time to be heard.
TRACKER_JUDGES = timedelta(seconds=60)
REPORT_LAG = timedelta(seconds=6)  # from a rank's event to a heartbeat that must know of it: three heartbeats


def reconcile(send: Send) -> None:
    """One round over all runs that are open, and over ranks that outlived theirs."""
    _guarded(_advance_queue)
    for run in Run.objects.open().exclude(status=Status.QUEUED).for_lists().order_by("pk"):
        with structlog.contextvars.bound_contextvars(run=run.pk):
            _guarded(_advance, run, send)
    _guarded(_clean_up, send)
    for run in Run.objects.filter(moves=True).select_related("job").order_by("pk"):
        with structlog.contextvars.bound_contextvars(run=run.pk):
            _guarded(move_on, run, spec_of)


def _guarded(step: Callable[..., object], *args: Any) -> None:
    """One run that cannot be handled must not keep the others from their turn."""
    try:
        step(*args)
    except BrokerDown as error:
        log.warning("broker down", error=str(error))
    except Exception:
        log.exception("reconcile failed", step=step.__name__)


def _advance_queue() -> None:
    queue = Queue()
    for run in queue.runs:
        with structlog.contextvars.bound_contextvars(run=run.pk):
            _guarded(queue.advance, run)
    queue.tell()


def _advance(run: Run, send: Send) -> None:
    run.refresh_from_db(fields=CHANGING)
    if run.status in (Status.STARTING, Status.RUNNING) and (_watch_nodes(run) or _watch_ranks(run)):
        return
    if run.status == Status.STARTING:
        _start(run, send)
    elif run.status == Status.RUNNING:
        if run.recovery is not None:
            extend_reserve(run)
            _dispatch(run, send)
        if run.boundary_why and run.stop_after is None:
            _ask_for_boundary(run, send)
    elif run.status == Status.STOPPING:
        _stop(run, send)


def _watch_nodes(run: Run) -> bool:
    """Fail `run` if a node of it is silent or has lost a rank; whether it did."""
    since = liveness.listening_since()
    if since is None or timezone.now() - since < silence():
        return False  # nobody has listened long enough to call a node silent
    reserve = in_reserve(run)
    for rank in _ranks(run):
        reason = _trouble(run, rank)
        if reason and _goes_on_without(run, rank):
            services.lose_worker(run, rank, reason)
        elif reason and rank.rank in reserve:
            services.leave_reserve(run, rank, reason)
        elif reason:
            back = rank.node.state == NodeState.ONLINE and services.bring_back(run, rank, reason)
            if not back:
                services.fail_or_move(run, reason)
            return True
    return False


def _watch_ranks(run: Run) -> bool:
    """Fail `run` if ranks of it ended and no cause was heard of in time; whether it did."""
    ends = (RankStatus.FAILED, RankStatus.STOPPED, RankStatus.LEFT)
    ended = list(run.ranks.filter(state__in=ends).order_by("state_since", "rank"))
    if not ended or timezone.now() - ended[0].state_since < REPORT_LAG:
        return False
    if run.job.swaps and run.status == Status.RUNNING:
        return services.end_without_workers(run)
    first = next((rank for rank in ended if rank.state == RankStatus.FAILED), None)
    reason = (
        services.rank_failure(first)
        if first
        else f"{services.place(ended[0])} was stopped by its node's agent."
    )
    services.fail_or_move(run, reason)
    return True


def _trouble(run: Run, rank: RankState) -> str:
    node = rank.node
    silent = node.state != NodeState.ONLINE and node.refused_since is None
    if silent and not _awaited(run, rank) and not _trains(run) and not _left_to_tracker(run, rank):
        quiet = f"{(timezone.now() - node.last_seen).total_seconds():.0f} s" if node.last_seen else "ever"
        return f"Node {node.name} in {rank.dc.name} has been silent for {quiet}."
    started = rank.state in (RankStatus.STARTING, RankStatus.READY, RankStatus.RUNNING)
    if (
        started
        and node.last_seen
        and node.last_seen > rank.state_since + REPORT_LAG
        and not _reported(run, rank)
    ):
        return f"{services.place(rank)} is gone: its node does not know it any more."
    return ""


def _trains(run: Run) -> bool:
    """Whether `run` has ended an iteration just now: every rank has a part in it, whoever speaks for them.

    An agent that hangs or was paused does not report, while its ranks train on. Others report an iteration
    when it is over, so a long one is waited for.
    """
    if run.progressed_at is None:
        return False
    longest = timedelta(milliseconds=LATE_ITERATIONS * run.predicted.get("iteration_ms", 0.0))
    return timezone.now() - run.progressed_at < max(silence(), longest)


def _awaited(run: Run, rank: RankState) -> bool:
    """Whether a silent node may still come back to a run that recovers; its ranks wait for it as long."""
    settings, last = run.recovery, rank.node.last_seen
    if settings is None or last is None or run.status != Status.RUNNING:
        return False
    return timezone.now() - last < silence() + timedelta(seconds=settings.wait_s)


def _left_to_tracker(run: Run, rank: RankState) -> bool:
    """Whether the tracker of workers that swap may still say of a silent node that its workers are lost.

    It may have to be elected first. Once it has said so, nobody waits for the node any more.
    """
    last = rank.node.last_seen
    if not run.job.swaps or run.status != Status.RUNNING or last is None:
        return False
    return timezone.now() - last < silence() + TRACKER_JUDGES


def _goes_on_without(run: Run, rank: RankState) -> bool:
    """Whether `run` goes on without `rank`, which its node, that answers, does not know any more."""
    return run.job.swaps and run.status == Status.RUNNING and rank.node.state == NodeState.ONLINE


def _reported(run: Run, rank: RankState, *, alive: bool = False) -> bool:
    """Whether the node's last heartbeat speaks of `rank`: at all, or as one that has not ended.

    One that ended is named for a while, as a heartbeat may come before the event that tells why.
    """
    key = (str(run.pk), run.generation, rank.rank)
    return any(
        (str(seen.get("run")), seen.get("generation"), seen.get("rank")) == key
        for seen in rank.node.seen_ranks
        if not alive or seen.get("state") not in RANK_OVER
    )


def _ranks(run: Run) -> list[RankState]:
    """The ranks of `run` that are not over."""
    return list(run.ranks.exclude(state__in=RANK_OVER).select_related("node", "dc"))


def _ranks_in_use(run: Run) -> list[RankState]:
    """Those whose GPUs are not in reserve."""
    reserve = in_reserve(run)
    return [rank for rank in _ranks(run) if rank.rank not in reserve]


def _start(run: Run, send: Send) -> None:
    """Tell nodes that have not answered to start their ranks; give up when it takes too long."""
    since = liveness.listening_since()
    # Time in which no node could be heard, or told anything, is not the nodes'.
    limit = timedelta(seconds=settings.START_TIMEOUT_S)
    if since is not None and timezone.now() - _later(run.status_since, since) > limit:
        late = [rank for rank in _ranks_in_use(run) if rank.state != RankStatus.RUNNING]
        who = services.place(late[0]) + (f" and {len(late) - 1} more" if len(late) > 1 else "")
        services.fail_run(
            run, f"Did not start within {settings.START_TIMEOUT_S:.0f} s: {who} did not become ready."
        )
        return
    try:
        _dispatch(run, send)
    except BrokerDown:
        services.wait_for(run, "Waits for the broker, which does not answer. The site retries every 2 s")
        raise
    services.wait_for(run, _waits(run))


def _later(noted: datetime, since: datetime) -> datetime:
    """The later of two times; `since` where the other lies ahead: our clock was set back since."""
    return since if noted > timezone.now() else max(noted, since)


def _dispatch(run: Run, send: Send) -> None:
    """Tell nodes to start those of their ranks that they have not answered for."""
    silent = [rank for rank in _ranks(run) if rank.state == RankStatus.ASSIGNED]
    now = timezone.now()
    again = now - timedelta(seconds=settings.DISPATCH_AGAIN_AFTER_S)
    # What was told in the future was told before our clock was set back.
    due = {r.node for r in silent if r.dispatched_at is None or not again <= r.dispatched_at <= now}
    for node in sorted(due, key=lambda node: node.name):
        send(node.name, "workers.start_ranks", {"spec": spec_of(run, node).to_json()})
        services.record_dispatch(run, node)


def _waits(run: Run) -> str:
    in_use = _ranks_in_use(run)
    waiting = [rank for rank in in_use if rank.state != RankStatus.RUNNING]
    total = len(in_use)
    return f"Waits for {len(waiting)} of {total} ranks to become ready" if waiting else ""


def _stop(run: Run, send: Send) -> None:
    """Tell every node that still has ranks of `run` to stop them; done when none has."""
    left = [rank for rank in _ranks(run) if not _surely_gone(run, rank, run.status_since)]
    silent = _not_waited_for(run, left)
    if len(silent) == len(left):
        services.finish_stopped(run, _unheard(silent) if silent else "")
        return
    services.wait_for(run, f"Waits for {len(left)} ranks to end")
    _send_stops(run, left, send)


def _not_waited_for(run: Run, left: list[RankState]) -> list[RankState]:
    """Those of `left` whose end a stopped run does not wait for: a stop is over within 5 s, whatever happens.

    Their GPUs stay taken, and the stops go on, until they are known to be gone (`_clean_up`).
    """
    first_wait, killed = (timedelta(seconds=seconds) for seconds in settings.STOP_LOOK_AGAIN_S)
    since = run.status_since
    waited = timezone.now() - since
    if waited >= killed or waited < -silence():  # our clock was set back: nobody knows how long it was
        return left
    if waited < first_wait:
        return []
    return [rank for rank in left if rank.node.last_seen is None or rank.node.last_seen < since]


def _unheard(ranks: list[RankState]) -> str:
    nodes = ", ".join(sorted({rank.node.name for rank in ranks}))
    gpus = "1 GPU" if len(ranks) == 1 else f"{len(ranks)} GPUs"
    return (
        f"{gpus} of {nodes} did not confirm that they stopped. The site asks again and keeps them "
        "reserved until they do."
    )


def _surely_gone(run: Run, rank: RankState, asked_at: datetime) -> bool:
    """Whether `rank` cannot be running: never sent, not known to a node that answers, or its node is dead."""
    if rank.dispatched_at is None:
        return True
    node = rank.node
    if node.last_seen is None or node.state == NodeState.SILENT:
        since = liveness.listening_since()
        # Time in which no node could be heard says nothing of this one.
        return since is not None and timezone.now() - _later(asked_at, since) > 3 * silence()
    return node.last_seen > asked_at + REPORT_LAG and not _reported(run, rank, alive=True)


def _ask_for_boundary(run: Run, send: Send) -> None:
    """Tell rank 0's node that `run` is to end after a whole iteration; again until that rank names it.

    Of workers that swap all nodes are told: the tracker is on one of them.
    """
    ranks = run.ranks.select_related("node")
    leads = ranks.exclude(state__in=RANK_OVER) if run.job.swaps else ranks.filter(rank=0)
    _send_stops(run, leads, send, boundary=True)


def _send_stops(run: Run, ranks: Iterable[RankState], send: Send, **how: bool) -> None:
    for name in sorted({rank.node.name for rank in ranks}):
        _send_stop(name, str(run.pk), run.generation, send, **how)


def _send_stop(node: str, run: Any, generation: Any, send: Send, **how: bool) -> None:
    """Tell a node to stop its ranks of a run, as it names the run itself."""
    kwargs = {"run": run, "generation": generation, "grace_s": settings.STOP_GRACE_S}
    send(node, "workers.stop_ranks", {**kwargs, **how})


def _clean_up(send: Send) -> None:
    """End ranks that outlived their run, and take back the GPUs of those that are gone."""
    over = Run.objects.exclude(pk__in=Run.objects.open()).for_lists()
    for run in over.filter(ranks__state__in=set(RankStatus) - set(RANK_OVER)).distinct():
        left = []
        for rank in _ranks(run):
            if _surely_gone(run, rank, run.finished_at or run.status_since):
                services.release_rank(run, rank)
            else:
                left.append(rank)
        _send_stops(run, left, send)
    _stop_strangers(send)


def _stop_strangers(send: Send) -> None:
    """Stop what nodes report of runs that are over or unknown here: a stop may have been lost."""
    open_runs = {
        (str(pk), generation) for pk, generation in Run.objects.open().values_list("pk", "generation")
    }
    for node in Node.objects.online().exclude(seen_ranks=[]):
        alive = [seen for seen in node.seen_ranks if seen.get("state") not in RANK_OVER]
        reported = {(str(seen.get("run")), seen.get("generation")) for seen in alive}
        for run, generation in sorted(reported - open_runs, key=str):
            _send_stop(node.name, run, generation, send)


def spec_of(run: Run, node: Node) -> LaunchSpec:
    """What `node` needs to know to start its ranks of `run`."""
    shape = shape_of(run.job.document)
    ranks = list(run.ranks.select_related("node", "dc").order_by("rank"))
    # A GPU that left the reserve is out of the run for good.
    ranks = [rank for rank in ranks if not shape.in_reserve(rank.rank) or rank.state not in RANK_OVER]
    return LaunchSpec(
        run=str(run.pk),
        generation=run.generation,
        job=parse(TrainJob, run.document),
        ranks=tuple(
            RankAssignment(
                rank=rank.rank,
                pipeline=rank.pipeline,
                stage=rank.stage,
                shard=shape.place_of(rank.rank)[2],
                dc=shape.dcs_of_pipeline[rank.pipeline][rank.stage],
                dc_name=shape.dcs[shape.dcs_of_pipeline[rank.pipeline][rank.stage]],
                node=rank.node.name,
                host=rank.node.host,
                gpu=rank.gpu,
            )
            for rank in ranks
            if not shape.in_reserve(rank.rank)
        ),
        reserve=tuple(
            gpu_in_reserve(
                rank.rank,
                shape.dc_of_rank[rank.rank],
                shape.dcs[shape.dc_of_rank[rank.rank]],
                node=rank.node.name,
                host=rank.node.host,
                gpu=rank.gpu,
            )
            for rank in ranks
            if shape.in_reserve(rank.rank)
        ),
        local=tuple(rank.rank for rank in ranks if rank.node_id == node.pk),
        rendezvous_host=ranks[0].node.host,
        rendezvous_port=run.rendezvous_port or 0,
        secret=run.secret,
        log_dir="",  # the node knows where its logs go
        ports=node.rank_ports,
        start=max(rank.start for rank in ranks if rank.node_id == node.pk),
    )
