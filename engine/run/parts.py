"""The parts that a job's host has."""

import selectors
from collections.abc import Callable
from typing import Any

from engine.control.pulse import Pulses
from engine.run.coordinators import PrefillCoordinators
from engine.run.local_ranks import emit
from engine.run.part import GroupStart, HostPart
from engine.run.rank_processes import Children, RankProcesses
from engine.run.recovery import Recovering
from engine.run.run_result import RunResult
from engine.run.silence import SilenceWatch
from engine.run.swapping import SwapWorkers, TrackedWorkers, replica_here
from engine.run.tracking import Tracking
from engine.run.verdict import Verdict

Commands = dict[str, Callable[[str], None]]  # by name: takes the rest of the line


def begin(
    ranks: RankProcesses,
    first: GroupStart,
    selector: selectors.BaseSelector,
    *,
    children: Children,
    commands: Commands,
) -> None:
    """Give the ranks' host its parts, and start the ranks, or leave that to the part that does.

    first : all ranks of this machine; its socket listens, on the machine of the first rank.
    commands : gets those of the parts.
    """
    job, verdict = first.spec.job, Verdict(ranks)
    watching: list[HostPart] = [verdict]
    if pulses := Pulses.of(job, first.spec.local):
        watching.append(SilenceWatch(ranks, pulses))
    if job.prefill is not None and first.schedule is not None:
        coordinators = PrefillCoordinators(selector=selector, emit=emit, life=ranks.life, children=children)
        watching.append(coordinators)

    def track(result: dict[str, Any]) -> None:
        if job.tracking.folders and first.spec.first_rank in first.spec.local:
            watching.append(Tracking(first.spec, ranks, children, result))

    if job.failures.recovery is not None:
        result = RunResult(ranks)
        recovering = Recovering(first, ranks, selector, verdict=verdict, result=result)
        commands["cut"] = recovering.cut
        track(result.added)
        ranks.parts = [result, recovering, *watching]
    elif first.plan is not None and (me := replica_here(first)) is not None:
        workers = TrackedWorkers(ranks, first, me, selector)
        track(workers.added)
        ranks.parts = [workers, *watching]
        ranks.start(workers.first)
    else:
        reports = SwapWorkers(ranks) if first.plan else RunResult(ranks)
        if isinstance(reports, RunResult):
            track(reports.added)
        ranks.parts = [reports, *watching]
        ranks.start(first)
        if first.store is not None:
            first.store.close()
