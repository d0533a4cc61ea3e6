"""Runs the solver in a thread of its own, watches it, and stops it in time."""

import threading
from dataclasses import dataclass, field, replace

from ortools.sat.python import cp_model

from engine.schedule.optimal_answer import Times
from engine.schedule.optimal_model import OptimalModel
from engine.schedule.optimal_problem import Problem
from engine.schedule.search import Search, StoppedBy

WORKERS = 2
POLL_S = 0.05
# Workers go in step for this much work, in the solver's own measure: some seconds.
IN_STEP_WORK = 0.3


@dataclass(slots=True)
class Solving:
    """One run of the solver, and its results so far (makespans in units).

    in_step : the workers take turns for a given amount of work: the same model gives the same answer, but a
        long proof takes longer.
    best : the shortest makespan so far.  bound : a makespan that no schedule of the model can beat.
    """

    model: OptimalModel
    in_step: bool = False
    best: float | None = None
    bound: float = 0.0
    status: cp_model.CpSolverStatus = cp_model.UNKNOWN
    solver: cp_model.CpSolver = field(default_factory=cp_model.CpSolver)

    @property
    def has_answer(self) -> bool:
        return self.status in (cp_model.OPTIMAL, cp_model.FEASIBLE)

    @property
    def proven(self) -> bool:
        """Whether the best answer is proven optimal, or the model has no schedule within its range."""
        return self.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)

    def run(self, problem: Problem, search: Search) -> StoppedBy:
        """Solves until proven, or until the search must end; reports each better schedule."""
        self._set(search)
        thread = threading.Thread(target=self._solve, name="optimal", daemon=True)
        thread.start()
        stopped: StoppedBy = "time"
        reported = float("inf")
        try:
            while thread.is_alive():
                thread.join(POLL_S)
                if self.best is not None and self.best < reported:
                    reported = self.best
                    bound = max(search.bound, self.bound * problem.unit)
                    replace(search, bound=bound).tell(self.best * problem.unit, "solver")
                why = search.stopped_by()
                if why is not None:
                    stopped = why
                    self.solver.stop_search()
        finally:
            # The caller may have been interrupted: the thread must not outlive it.
            while thread.is_alive():
                self.solver.stop_search()
                thread.join(POLL_S)
        return "proven" if self.proven else stopped

    def times(self) -> Times:
        """The best answer."""
        value, model = self.solver.value, self.model
        start = {
            key: value(begin)
            for key, begin in model.start.items()
            if key not in model.elided or not value(model.elided[key])
        }
        return Times(start=start, sent={key: value(sending) for key, sending in model.sent.items()})

    def _set(self, search: Search) -> None:
        parameters = self.solver.parameters
        parameters.max_time_in_seconds = search.left_s
        parameters.num_workers = WORKERS
        if self.in_step:
            parameters.interleave_search = True
            parameters.max_deterministic_time = IN_STEP_WORK
        parameters.random_seed = search.seed % 2**31
        parameters.catch_sigint_signal = False
        # The order literals are chosen already; more presolve takes longer than it saves.
        parameters.max_presolve_iterations = 1
        parameters.cp_model_probing_level = 0
        parameters.symmetry_level = 0
        self.solver.best_bound_callback = self._note_bound

    def _solve(self) -> None:
        self.status = self.solver.solve(self.model.model, _Note(self))
        if self.has_answer:
            self._note_bound(self.solver.best_objective_bound)

    def _note_bound(self, bound: float) -> None:
        self.bound = max(self.bound, bound)


class _Note(cp_model.CpSolverSolutionCallback):
    """Notes the makespan of each better schedule that the solver finds."""

    def __init__(self, solving: Solving) -> None:
        super().__init__()
        self.solving = solving

    def on_solution_callback(self) -> None:
        self.solving.best = self.objective_value
