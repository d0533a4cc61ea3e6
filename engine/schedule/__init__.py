"""The order of work: the schedule, and one module per policy.

A policy is a pure function from a scenario to a Schedule: one file that ends in ``policy = …`` and one line
in `registry.ROWS`. A greedy policy is a set of rules for the event loop in `greedy`.
"""

import importlib

from engine.errors import Infeasible
from engine.schedule.contention import build_best
from engine.schedule.ir import Op, OpKind, Schedule, Transfer
from engine.schedule.registry import MODULES
from engine.schedule.scenario import BEST, Scenario
from engine.schedule.search import Built, Chosen, Frame, Policy, Progress, Search
from engine.schedule.traversal import Traversal


def policy_of(name: str) -> Policy:
    """The policy called `name`. Loads its module and that module's imports (a solver, compiled code)."""
    return importlib.import_module(f"engine.schedule.{MODULES[name]}").policy


def build(scenario: Scenario, search: Search | None = None) -> Built | Infeasible:
    """Return the policy's schedule for `scenario`, or why there is none within its limits.

    The order is that for overlapped sends: if they block, that means the same for every policy.
    The first call in a process loads (the first ever: compiles) the event loop.
    """
    if scenario.sends != "overlapped":
        scenario = scenario.model_copy(update={"sends": "overlapped"})
    search = search or Search(seconds=scenario.time_limit_s, seed=scenario.seed)
    policy = policy_of(scenario.policy)
    if scenario.contention == BEST:
        return build_best(policy, scenario, search)
    return policy.build(scenario, search)


__all__ = [
    "Built",
    "Chosen",
    "Frame",
    "Infeasible",
    "Op",
    "OpKind",
    "Policy",
    "Progress",
    "Scenario",
    "Schedule",
    "Search",
    "Transfer",
    "Traversal",
    "build",
    "policy_of",
]
