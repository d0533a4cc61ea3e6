"""The best order of ops and messages, proven by a constraint solver (OR-tools CP-SAT).

One traversal and one sharing, both limits, each kind of op in microbatch order at its position. The solver
starts from the best schedule of any other policy in the frame. Its proof holds for all schedules of the frame
(with recomputation: for those in microbatch order).

Source of the idea: CrossPipe (Chen et al., ATC 2025), "Optimal Schedule": theirs come from the same solver.
"""

from dataclasses import replace
from math import ceil

from engine.schedule.ir import Schedule
from engine.schedule.optimal_answer import schedule_of, times_of
from engine.schedule.optimal_model import NotBuiltError, OptimalModel
from engine.schedule.optimal_problem import Problem
from engine.schedule.optimal_solver import Solving
from engine.schedule.optimal_start import SAME, Known, best_known
from engine.schedule.scenario import Scenario
from engine.schedule.search import Built, Chosen, Frame, Search, StoppedBy
from engine.schedule.timing import time_ops
from engine.schedule.traversal import Traversal

# Pairs of ops and of transfers that the model orders; beyond, it takes minutes and gigabytes to build.
MOST_PAIRS = 300_000
SOLVER = "solver"


class Optimal:
    """Proves the best schedule of one frame, or bounds how far from it the best known one may be."""

    def frames(self, scenario: Scenario) -> tuple[Frame, ...]:
        """The traversal and sharing of the scenario; straight and spatial by default.

        Loop and wave have two chunks unless the scenario sets `chunks`; straight has one.
        """
        name = scenario.traversal or "straight"
        chunks = scenario.chunks or (1 if name == "straight" else 2)
        traversal = Traversal(name=name, stages=scenario.stages, chunks=chunks)
        return (Frame(traversal=traversal, sharing=scenario.sharing or "spatial"),)

    def build(self, scenario: Scenario, search: Search) -> Built:
        """The best schedule within the search's limits, and the proof about it.

        It is never infeasible: one microbatch at a time fits any limit. If the model would be too large to
        build, the best start is returned with the bound that is known.
        """
        (frame,) = self.frames(scenario)
        problem = Problem.of(scenario, frame)
        best = best_known(scenario, frame, problem, search)
        search.tell(best.makespan, best.idea)
        if best.makespan <= search.bound * (1 + SAME):
            return _built(frame, best, search.bound, "proven")
        stopped = search.stopped_by()
        if problem.pairs > MOST_PAIRS:
            why = f"the solver accepts up to {MOST_PAIRS} pairs of ops, this cell has {problem.pairs}"
            best, stopped = replace(best, idea=f"{best.idea}; {why}"), stopped or "time"
        if stopped is not None:
            return _built(frame, best, search.bound, stopped)
        return _solve(scenario, frame, problem, best, search)


def _solve(scenario: Scenario, frame: Frame, problem: Problem, best: Known, search: Search) -> Built:
    """Runs the solver with workers in step, so that quick proofs are repeatable; then without."""
    bound = search.bound
    stopped: StoppedBy = "time"
    for in_step in (True, False):
        try:
            solving = Solving(_model(scenario, problem, best, replace(search, bound=bound)), in_step=in_step)
        except NotBuiltError:
            return _built(frame, best, bound, search.stopped_by() or stopped)
        stopped = solving.run(problem, search)
        bound = max(bound, solving.bound * problem.unit)
        if solving.has_answer:
            best = _better(scenario, schedule_of(problem, scenario, solving.times()), best)
        elif solving.proven:
            # Nothing that keeps the microbatch order is as good as what another policy made.
            bound = max(bound, solving.model.most * problem.unit)
        if solving.proven or search.stopped_by() is not None:
            break
    return _built(frame, best, bound, stopped)


def _better(scenario: Scenario, schedule: Schedule, best: Known) -> Known:
    makespan = time_ops(scenario, schedule).makespan
    if makespan >= best.makespan * (1 - SAME):
        return best
    idea = best.idea if best.idea.startswith(SOLVER) else f"{SOLVER}, from {best.idea}"
    return Known(schedule=schedule, makespan=makespan, idea=idea)


def _model(scenario: Scenario, problem: Problem, best: Known, search: Search) -> OptimalModel:
    """The model between the proven bound and the best known makespan, with the best schedule as a hint."""
    hint = times_of(problem, scenario, best.schedule)
    most = max(begin + problem.length(key[0], key[2]) for key, begin in hint.start.items())
    # Where durations were rounded down, the best makespan may be below what is proven of the true ones.
    least = min(most, ceil(search.bound / problem.unit * (1 - SAME))) if problem.exact else 0
    model = OptimalModel(problem, least=least, most=most, stopped=search.stopped_by)
    model.hint(hint.start, hint.sent)
    return model


def _built(frame: Frame, best: Known, bound: float, stopped: StoppedBy) -> Built:
    chosen = Chosen(
        policy="optimal",
        traversal=frame.traversal.name,
        sharing=frame.sharing,
        chunks=frame.traversal.chunks,
        idea=best.idea,
    )
    return Built(
        schedule=best.schedule, chosen=chosen, lower_bound=min(bound, best.makespan), stopped_by=stopped
    )


policy = Optimal()
