"""Why the search's best option leaves out a data centre."""

from collections.abc import Iterable, Sequence, Set

from engine.plan import choose
from engine.plan.request import Objective
from engine.plan.result import Excluded, Option
from engine.plan.search.problem import Problem
from engine.plan.search.space import Space


def excluded(
    problem: Problem,
    spaces: Iterable[Space],
    options: Sequence[Option],
    best: int | None,
    *,
    is_proven: bool,
) -> tuple[Excluded, ...]:
    """The data centres that the best option does not use (all, if there is none), each with its reason.

    problem : that of the best option.
    is_proven : no option that was left out could be better.
    """
    alone = [space for space in spaces if space.problem.job.cell_pipelines == 1 and 1 in space.classes]
    linked = {problem.twins[dc] for space in alone for route, _ in space.classes[1].placed for dc in route}
    used = options[best].gpus_used if best is not None else {}
    beaten = "no option that uses it can be better with any schedule"
    if not is_proven:
        beaten = "no tried option that uses it is better"
    index = {dc.name: i for i, dc in enumerate(problem.cluster.datacenters)}
    return tuple(
        Excluded(
            dc=name, reason=_why(problem, linked if alone else None, options, best, index[name]) or beaten
        )
        for name in problem.request.names
        if name not in used
    )


def renewed(
    before: Sequence[Excluded],
    names: Sequence[str],
    options: Sequence[Option],
    best: int,
    objective: Objective,
) -> tuple[Excluded, ...]:
    """The reasons after options have improved: figures change, and another option may be the best."""
    chosen = options[best]
    reasons = {dc.dc: dc.reason for dc in before}
    for name in names:
        using = [option for option in options if name in option.gpus_used and option.feasible]
        if using and name not in chosen.gpus_used:
            reasons[name] = choose.worse(chosen, using, objective)
    return tuple(
        Excluded(dc=name, reason=reasons[name])
        for name in names
        if name in reasons and name not in chosen.gpus_used
    )


def _why(
    problem: Problem,
    linked: Set[int] | None,
    options: Sequence[Option],
    best: int | None,
    dc: int,
) -> str | None:
    """None: bounds or timings show other options to be better.

    linked : data centres on some route with room for one pipeline; None if these were not listed.
    """
    name, gpus = problem.cluster.datacenters[dc].name, problem.cluster.datacenters[dc].gpus
    smallest = problem.job.gpus_per_stage  # cells of one pipeline are always tried
    if name not in problem.request.allowed_names:
        return "not among the allowed data centres"
    if gpus < smallest:
        return f"has {gpus} GPUs; one stage of one DP-cell needs {smallest}"
    too_large = problem.roomiest.no_room_on(problem.cluster.datacenters[dc].gpu)
    if too_large:
        return too_large
    if best is None:
        return "no option is feasible"
    timed = [option for option in options if name in option.gpus_used and option.feasible]
    if timed:
        return choose.worse(options[best], timed, problem.request.objective)
    if linked is None or problem.twins[dc] in linked:
        return None
    return "no chain of linked data centres that includes it holds every stage"
