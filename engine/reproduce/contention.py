"""The answers of all rules of contention, and of `auto`, to one question about a cell that shares links.

The paper's rule is by rank. `auto` here is the best schedule that its search finds for the same cell:
straight through the stages, links shared in time. So the bound of Atlas's own schedule holds for it, too.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

from engine.errors import Infeasible
from engine.reproduce import ORDERS, Order
from engine.schedule import Search
from engine.schedule.auto import Auto
from engine.schedule.scenario import Scenario
from engine.schedule.search import Frame
from engine.schedule.traversal import straight
from engine.simulate import SimulationResult, lower_bound, simulate, simulate_schedule

# Operations that a search visits, at most: the same result on every machine.
EFFORT = 1_000_000
# What rounding may add to a bound that is a whole number.
ROUNDING = 1e-9


def under_all(figure: Callable[[Order], float]) -> dict[Order, float]:
    """`figure` under every rule of contention and with auto's schedule."""
    return {order: figure(order) for order in ORDERS}


def document_under(order: Order) -> dict[str, Any]:
    """The fields of a scenario that ask for the rule `order`, or for auto's schedule."""
    if order == "auto":
        return {"policy": "auto", "sharing": "temporal", "traversal": "straight", "contention": None}
    return {"policy": "atlas", "contention": order}


def simulate_under(scenario: Scenario, order: Order, effort: int = EFFORT) -> SimulationResult:
    """Simulate Atlas under the rule `order`, or the schedule that auto finds within `effort`."""
    scenario = scenario.model_copy(update=document_under(order))
    if order != "auto":
        return simulate(scenario)
    built = Auto(effort=effort).build(scenario, Search(seconds=math.inf, bound=least_makespan(scenario)))
    assert not isinstance(built, Infeasible)  # these cells have no limits
    return simulate_schedule(scenario, built.schedule)


def makespan_of(result: SimulationResult) -> float:
    """The makespan of a cell without limits, in its unit of time."""
    assert result.makespan is not None, f"{result.scenario.policy} has a schedule"
    return result.makespan


def least_makespan(scenario: Scenario) -> float:
    """The proven bound of straight schedules that share links in time; rounded up where all times are whole,
    as every makespan is then."""
    bound = lower_bound(scenario, Frame(traversal=straight(scenario.stages), sharing="temporal"))
    kinds: tuple[Literal["forward", "backward", "recompute"], ...] = ("forward", "backward", "recompute")
    times = [scenario.per_stage(kind) for kind in kinds]
    times += [scenario.hop_times("temporal"), scenario.hop_delays("temporal")]
    return math.ceil(bound - ROUNDING) if all((t == t.round()).all() for t in times) else bound
