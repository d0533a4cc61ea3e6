"""The solver's start: the best schedule of any other policy in the same frame."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine.errors import Infeasible, InputError
from engine.schedule import registry
from engine.schedule.ir import Schedule
from engine.schedule.optimal_answer import one_by_one, schedule_of
from engine.schedule.optimal_problem import Problem
from engine.schedule.scenario import Scenario
from engine.schedule.search import Frame, Search
from engine.schedule.timing import DeadlockError, time_ops

# Share of the search's time for all policies that search themselves.
SHARE = 0.2
SAME = 1e-9
NO_STARTS = ("optimal", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A schedule in the frame, its makespan, and its origin."""

    schedule: Schedule
    makespan: float
    idea: str


def best_known(scenario: Scenario, frame: Frame, problem: Problem, search: Search) -> Known:
    """The best schedule of the other policies in this frame, or one microbatch at a time."""
    serial = schedule_of(problem, scenario, one_by_one(problem))
    best = Known(
        schedule=serial, makespan=time_ops(scenario, serial).makespan, idea="one microbatch at a time"
    )
    # Progress of a start is not the search's own progress.
    seconds = search.elapsed_s + SHARE * search.left_s
    search = replace(search, seconds=seconds, report=lambda progress: None)
    for variant in _variants(scenario, frame):
        if search.stopped_by() is not None or best.makespan <= search.bound * (1 + SAME):
            break
        known = _built_by(variant, frame, search)
        if known is not None and known.makespan < best.makespan * (1 - SAME):
            best = known
    return best


def _variants(scenario: Scenario, frame: Frame) -> Iterator[Scenario]:
    """The scenario for every other policy, with each recompute rule if stages recompute."""
    chunks = frame.traversal.chunks if frame.traversal.chunks > 1 else None
    rules = (None, "jit", "idle", "late") if scenario.per_stage("recompute").any() else (None,)
    fields = {"sharing": frame.sharing, "traversal": None, "chunks": chunks}
    for name in registry.MODULES:
        if name not in NO_STARTS:
            for rule in rules:
                yield scenario.model_copy(update={**fields, "policy": name, "recompute_rule": rule})


def _built_by(scenario: Scenario, frame: Frame, search: Search) -> Known | None:
    """The schedule of the scenario's policy; None if it has none in this frame."""
    policy = importlib.import_module(f"engine.schedule.{registry.MODULES[scenario.policy]}").policy
    try:
        if frame not in policy.frames(scenario):
            return None
        built = policy.build(scenario, search)
        if isinstance(built, Infeasible) or not _fits(built.schedule, frame):
            return None
        makespan = time_ops(scenario, built.schedule).makespan
    except (InputError, DeadlockError):
        return None
    return Known(schedule=built.schedule, makespan=makespan, idea=f"as {scenario.policy}")


def _fits(schedule: Schedule, frame: Frame) -> bool:
    alone = schedule.pipelines == 1
    return schedule.traversal == frame.traversal and (alone or schedule.sharing == frame.sharing)
