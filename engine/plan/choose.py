"""Choosing among options: limits, objective, Pareto front, and why data centres are left out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.plan.job import Job
from engine.plan.request import Objective, PlanRequest
from engine.plan.result import Excluded, Option, PlanResult

# Options whose scores differ by rounding alone are equal. At equal cost the faster is better, at equal
# throughput the cheaper of two that take as long, else the one with fewer DP-cells.
EQUAL = 1e-12


def result(
    request: PlanRequest, job: Job, order: Sequence[str], options: tuple[Option, ...], **rest: Any
) -> PlanResult:
    """The answer with these options: the figures of the job, the best and the front.

    rest : its other fields.
    """
    return PlanResult(
        method=request.method,
        policy=request.policy,
        objective=request.objective,
        order=tuple(order),
        cell_pipelines=job.cell_pipelines,
        comm_to_compute=job.comm_to_compute,
        forward_ms=job.forward_s * 1e3,
        backward_ms=job.backward_s * 1e3,
        recompute_ms=job.recompute_s * 1e3,
        transfer_ms=job.transfer_s * 1e3,
        activation_bytes=job.activation_bytes,
        parameters_per_stage=job.parameters_per_stage,
        options=options,
        best=best(options, request.objective),
        pareto=pareto(options),
        **rest,
    )


def within_limits(request: PlanRequest, option: Option) -> Option:
    """`option`, infeasible with a reason if it exceeds the budget or misses the deadline."""
    if not option.feasible:
        return option
    reasons = [*_over_budget(request, option), *_past_deadline(request, option)]
    return replace(option, feasible=False, reason="; ".join(reasons)) if reasons else option


def best(options: Sequence[Option], objective: Objective) -> int | None:
    """Index of the best feasible option (`better`): of equals the first, which has the fewest DP-cells."""
    chosen: int | None = None
    for i, option in enumerate(options):
        if option.feasible and (chosen is None or better(option, options[chosen], objective)):
            chosen = i
    return chosen


def best_of(options: Sequence[Option], objective: Objective) -> Option:
    """The best feasible option, else the last one."""
    index = best(options, objective)
    return options[-1 if index is None else index]


def pareto(options: Sequence[Option]) -> tuple[int, ...]:
    """Indexes of the feasible options: no other is at least as good in time and cost, and better in one."""
    points = [(o.iteration_ms, o.cost_per_iteration, i) for i, o in enumerate(options) if o.feasible]
    front: list[int] = []
    cheapest = float("inf")
    last: tuple[float | None, float | None] | None = None
    for time, cost, i in sorted(points, key=lambda point: (point[0] or 0.0, point[1] or 0.0, point[2])):
        assert cost is not None
        if cost < cheapest or (time, cost) == last:
            front.append(i)
            cheapest, last = cost, (time, cost)
    return tuple(sorted(front))


def why_none(options: Sequence[Option]) -> str:
    """Why no option is feasible: the reason of the smallest one."""
    return f"no number of DP-cells is feasible; with {options[0].dp_cells}: {options[0].reason}"


def excluded(
    request: PlanRequest, job: Job, options: Sequence[Option], best: int | None
) -> tuple[Excluded, ...]:
    """The data centres that the best option does not use (all, if there is none), each with its reason."""
    used = options[best].gpus_used if best is not None else {}
    return tuple(
        Excluded(dc=dc.name, reason=_why_excluded(request, job, options, best, dc.name))
        for dc in request.datacenters
        if dc.name not in used
    )


def _why_excluded(
    request: PlanRequest, job: Job, options: Sequence[Option], best: int | None, name: str
) -> str:
    gpus = request.datacenters[request.names.index(name)].gpus
    cell = job.cell_pipelines * job.gpus_per_stage
    if name not in request.allowed_names:
        return "not among the allowed data centres"
    if gpus < cell:
        return f"has {gpus} GPUs; one stage of one DP-cell needs {cell}"
    if best is None:
        return "no option is feasible"
    chosen = options[best]
    needs = chosen.pipelines * job.gpus_per_stage
    using = [option for option in options if name in option.gpus_used]
    feasible = [option for option in using if option.feasible]
    if feasible:
        return worse(chosen, feasible, request.objective)
    if using:
        return f"the options that use it are infeasible; with {using[0].dp_cells} DP-cells: {using[0].reason}"
    if gpus < needs:
        return f"has {gpus} GPUs; a stage of {chosen.dp_cells} DP-cells needs {needs}"
    return "the data centres before it in the order hold every stage"


def worse(chosen: Option, using: Sequence[Option], objective: Objective) -> str:
    """A sentence that compares the best of the feasible options `using` a data centre with the chosen one."""
    nearest = best_of(using, objective)
    ours, theirs = score(chosen, objective), score(nearest, objective)
    name, unit = _NAMES[objective]
    if objective == "throughput":
        unit = " pipelines/s" if chosen.tokens_per_s is None else " tokens/s"
    cells = "1 DP-cell" if nearest.dp_cells == 1 else f"{nearest.dp_cells} DP-cells"
    if is_equal(ours, theirs):
        return f"using it ({cells}) gives the same {name}, {abs(ours):.4g}{unit}"
    return f"using it ({cells}) gives {name} {abs(theirs):.4g}{unit}, without it {abs(ours):.4g}{unit}"


_NAMES = {
    "throughput": ("throughput", ""),
    "cost": ("cost per iteration", ""),
    "cost_per_token": ("cost per million tokens", ""),
}


def better(option: Option, other: Option, objective: Objective) -> bool:
    """Whether `option` is better than `other`, by more than rounding."""
    ours, theirs = score(option, objective), score(other, objective)
    if not is_equal(ours, theirs):
        return ours > theirs
    return _is_cheaper(option, other) if objective == "throughput" else _is_faster(option, other)


def is_equal(score: float, other: float) -> bool:
    """Whether two scores differ by rounding alone."""
    return abs(score - other) <= EQUAL * abs(other)


def _is_faster(option: Option, other: Option) -> bool:
    assert option.iteration_ms is not None  # both are feasible
    assert other.iteration_ms is not None
    return option.iteration_ms < other.iteration_ms * (1 - EQUAL)


def _is_cheaper(option: Option, other: Option) -> bool:
    """Whether it costs less and takes no longer: the best must not be dominated by another one shown."""
    ours, theirs = option.cost_per_iteration, other.cost_per_iteration
    assert ours is not None  # both are feasible
    assert theirs is not None
    return ours < theirs * (1 - EQUAL) and not _is_faster(other, option)


def score(option: Option, objective: Objective) -> float:
    """Score of a feasible option; more is better. Throughput counts tokens if the job gives their number.

    Pipelines of different micro-batches carry different numbers of tokens.
    """
    value = {
        "throughput": option.throughput if option.tokens_per_s is None else option.tokens_per_s,
        "cost": option.cost_per_iteration,
        "cost_per_token": option.cost_per_million_tokens,
    }[objective]
    assert value is not None  # feasible options have all figures of their objective
    return value if objective == "throughput" else -value


def _over_budget(request: PlanRequest, option: Option) -> list[str]:
    limit, cost = request.budget_per_iteration, option.cost_per_iteration
    if limit is None or cost is None or cost <= limit:
        return []
    return [f"costs {cost:.6g} per iteration, {cost - limit:.6g} over the budget of {limit:.6g}"]


def _past_deadline(request: PlanRequest, option: Option) -> list[str]:
    limit = request.deadline_h
    if limit is None or request.iterations is None or option.iteration_ms is None:
        return []
    hours = option.iteration_ms * request.iterations / 3.6e6
    if hours <= limit:
        return []
    late = f"{hours - limit:.6g} h past the deadline of {limit:.6g} h"
    return [f"takes {hours:.6g} h for {request.iterations} iterations, {late}"]
