"""In which order? The schedule IR, and one module per policy.

A policy is a pure function from a scenario to a Schedule. A greedy one is a set of rules for the event loop
in `greedy`: one file and one line in `GREEDY`.
"""

import importlib

from engine.errors import Infeasible
from engine.schedule.ir import Op, OpKind, Schedule, Transfer
from engine.schedule.rules import Rules
from engine.schedule.scenario import Scenario

# policy → module of this package whose `rules` states it
GREEDY = {
    "gpipe": "gpipe",
    "1f1b": "one_f_one_b",
    "varuna": "varuna",
    "atlas": "atlas",
}


def rules_of(scenario: Scenario) -> Rules:
    """The rules of the scenario's policy, with everything that the scenario leaves open filled in."""
    module = importlib.import_module(f"engine.schedule.{GREEDY[scenario.policy]}")
    return module.rules(scenario)


def build(scenario: Scenario) -> Schedule | Infeasible:
    """Return the policy's schedule for `scenario`, or why there is none within its limits.

    The first call in a process loads (the first ever: compiles) the event loop.
    """
    from engine.schedule.greedy import list_schedule  # numba: not paid by those who only read documents

    return list_schedule(scenario, rules_of(scenario))


__all__ = ["Infeasible", "Op", "OpKind", "Rules", "Scenario", "Schedule", "Transfer", "build", "rules_of"]
