"""Refines a plan: times its best shapes again with `auto`, which takes seconds and not milliseconds.

Options of the same shape share one timing. An option keeps its schedule if `auto` has nothing faster, so an
answer never gets worse; which option is best may change.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.cluster.cluster import Cluster
from engine.errors import Infeasible
from engine.plan import choose
from engine.plan.cell import cell_scenario, gpus_of_stages, placed_job
from engine.plan.dc_selection import Figures, figured, figures_of
from engine.plan.fitting import fits
from engine.plan.job import Job
from engine.plan.request import PlanRequest
from engine.plan.result import Option, PlanResult
from engine.plan.search.excluded import renewed
from engine.schedule.search import Progress, Search
from engine.simulate import SimulationResult, simulate

# Seconds of search for one shape, and the most shapes.
SHAPE_S = 60.0
MOST_SHAPES = 6
# An option nearer to its bound than this has nothing to gain.
SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """Progress of a refinement: `done` of `of` shapes, the answer so far, and the progress of the current
    search.
    """

    done: int
    of: int
    result: PlanResult
    progress: Progress | None = None


def refine(
    request: PlanRequest,
    result: PlanResult,
    *,
    report: Callable[[Refined], None] = lambda refined: None,
    cancelled: Callable[[], bool] = lambda: False,
    seconds: float = SHAPE_S,
) -> PlanResult:
    """`result` with the options that are `refining` timed by `auto`.

    Parameters
    ----------
    result : the answer of `plan` to the same request.
    report : called after each shape, and when the current search has something better.
    cancelled : called often; true ends it, and unfinished options stay `refining`.
    seconds : most wall time for one shape.
    """
    shapes = _shapes(request, result)
    for done, shape in enumerate(shapes):
        if cancelled():
            break

        def report_progress(progress: Progress, done: int = done, result: PlanResult = result) -> None:
            report(Refined(done=done, of=len(shapes), result=result, progress=progress))

        search = Search(seconds=seconds, cancelled=cancelled, report=report_progress)
        timed = _timed(request, result.options[shape[0]], search)
        if cancelled() and timed.makespan is None:
            break
        result = _with(request, result, shape, timed, finished=not cancelled())
        report(Refined(done=done + 1, of=len(shapes), result=result))
    return result


def marked(request: PlanRequest, options: Sequence[Option]) -> tuple[Option, ...]:
    """`options`, those worth it marked `refining`.

    Worth it are the best, those that could be better than it if they were as fast as their bound, and the
    front of time and cost.
    """
    if request.policy != "auto":
        return tuple(options)
    shapes: dict[object, None] = {}
    for i in _by_promise(request, options):
        if len(shapes) < MOST_SHAPES or shape_key(options[i]) in shapes:
            shapes[shape_key(options[i])] = None
    return tuple(
        replace(option, refining=_has_room(option) and shape_key(option) in shapes) for option in options
    )


def shape_key(option: Option) -> object:
    """All that determines the time of an option's cell, within one request."""
    return option.partitions, _layout_key(option), option.zero and option.pipelines


def _layout_key(option: Option) -> object:
    cell = option.pipelines // option.dp_cells
    return option.layers_per_stage, option.recompute, option.tp, option.micro_batch, cell


def _by_promise(request: PlanRequest, options: Sequence[Option]) -> list[int]:
    """Options above their bound that are worth refining, most promising first."""
    best = choose.best(options, request.objective)
    jobs: dict[object, tuple[Cluster, Job]] = {}
    least: dict[int, Option] = {}
    for i, option in enumerate(options):
        if _has_room(option):
            layout = sum(part.stages for part in option.partitions), _layout_key(option)
            if layout not in jobs:
                jobs[layout] = placed_job(request, option)
            least[i] = _at_best(request, *jobs[layout], option)
    hopeful = [
        i
        for i, option in least.items()
        if option.feasible and (best is None or choose.better(option, options[best], request.objective))
    ]
    hopeful.sort(key=lambda i: -choose.score(least[i], request.objective))
    first = [best] if best in least else []
    return list(dict.fromkeys([*first, *hopeful, *(i for i in choose.pareto(options) if i in least)]))


def _has_room(option: Option) -> bool:
    if option.pp_time_ms is None or option.lower_bound_ms is None:
        return False
    return option.pp_time_ms > option.lower_bound_ms * (1 + SAME)


def _shapes(request: PlanRequest, result: PlanResult) -> list[list[int]]:
    """Indexes of the options to refine, grouped by shape, most promising first."""
    shapes: dict[object, list[int]] = {}
    for i in _by_promise(request, result.options):
        if result.options[i].refining:
            shapes.setdefault(shape_key(result.options[i]), [])
    for i, option in enumerate(result.options):
        if option.refining:
            shapes.setdefault(shape_key(option), []).append(i)
    return list(shapes.values())


def _timed(request: PlanRequest, option: Option, search: Search) -> SimulationResult:
    """One cell of `option` with `auto`: in chunks only if memory holds them."""
    cluster, job = placed_job(request, option)
    scenario = cell_scenario(request, cluster, job, option.partitions, policy="auto")
    assert not isinstance(scenario, Infeasible)  # the option has a time
    timed = simulate(scenario, search)
    gpus = gpus_of_stages(cluster, option.partitions)
    if timed.timeline is None or fits(job.stages, gpus, timed.timeline.schedule):
        return timed
    whole = simulate(scenario.model_copy(update={"chunks": 1}), replace(search, began=time.monotonic()))
    return replace(whole, lower_bound=min(timed.lower_bound, whole.lower_bound))


def _with(
    request: PlanRequest, result: PlanResult, shape: list[int], timed: SimulationResult, *, finished: bool
) -> PlanResult:
    options = list(result.options)
    for i in shape:
        options[i] = replace(_better_of(request, options[i], timed), refining=not finished)
    best = choose.best(options, request.objective)
    return replace(
        result,
        options=tuple(options),
        best=best,
        pareto=choose.pareto(options),
        reason=None if best is not None else result.reason,
        excluded=result.excluded
        if best is None
        else renewed(result.excluded, request.names, options, best, request.objective),
    )


def _better_of(request: PlanRequest, option: Option, timed: SimulationResult) -> Option:
    """`option` with the schedule of `timed` if that is faster.

    The bound of `timed` holds for all of `auto`'s choices and is always taken over.
    """
    if timed.timeline is None or timed.chosen is None:
        return option
    was_ms = option.pp_time_ms
    assert was_ms is not None  # of a cell that was timed
    option = replace(option, lower_bound_ms=min(timed.lower_bound, was_ms))
    cluster, job = placed_job(request, option)
    figures = figures_of(
        job,
        gpus_of_stages(cluster, option.partitions),
        timed.timeline,
        policy=timed.chosen.policy,
        lower_bound_ms=min(timed.lower_bound, timed.timeline.makespan),
        schedule=str(timed.timeline.schedule),
    )
    faster = figured(request, cluster, replace(option, reason=None), figures)
    assert faster.iteration_ms is not None
    assert option.iteration_ms is not None
    return faster if faster.iteration_ms < option.iteration_ms else option


def _at_best(request: PlanRequest, cluster: Cluster, job: Job, option: Option) -> Option:
    """`option` as if it were as fast as its bound."""
    assert option.lower_bound_ms is not None
    figures = Figures(
        job=job,
        policy=option.policy,
        makespan_ms=option.lower_bound_ms,
        utilization=1.0,
        lower_bound_ms=option.lower_bound_ms,
        ends_together=True,  # as a wave has them, which `auto` may choose
    )
    return figured(request, cluster, replace(option, reason=None), figures)
