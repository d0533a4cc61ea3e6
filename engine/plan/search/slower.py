"""Orders that a policy builds for slower links.

A list schedule may get longer when a link gets faster; one order of ops and transfers cannot. So the orders
of slower links are candidates too. As a link slows down, a policy's order changes at some points and stays
the same between them. Each slowdown is tried in octaves. An interval is then halved if the orders at its ends
differ.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.errors import Infeasible
from engine.schedule import Schedule, build, policy_of
from engine.schedule.scenario import Link, Scenario
from engine.schedule.static import Static

OCTAVES = 6
# Intervals are halved until their ends are this close: 2 ** (1 / 32) is 2 %.
HALVINGS = 5
# A figure below this share of the shortest op is slowed down from that share.
LEAST_OF_OP = 1 / 8

Order = bytes
Figure = Literal["transfer", "latency"]
FIGURES: tuple[Figure, ...] = ("transfer", "latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slowdown:
    """The figure that is enlarged, and the hops."""

    figure: Figure
    hops: frozenset[int]


def slower_orders(scenario: Scenario) -> Iterator[Schedule | None]:
    """The orders that the scenario's policy builds for slower links, each once.

    None stands for a repeated order or one that cannot be built: every item takes as long. Nothing is yielded
    for a policy whose orders do not depend on links.
    """
    if isinstance(policy_of(scenario.policy), Static):
        return
    seen: set[Order] = set()
    for schedule in _schedules(scenario):
        order = None if schedule is None else _order(schedule)
        yield None if order is None or order in seen else schedule
        if order is not None:
            seen.add(order)


def _schedules(scenario: Scenario) -> Iterator[Schedule | None]:
    """The policy's schedules: all slowdowns in octaves first, then between them, breadth first."""
    ahead: deque[tuple[_Slowdown, int, float, Order | None, Order | None]] = deque()
    last: dict[_Slowdown, Order | None] = {}
    for octave, slowdown in itertools.product(range(OCTAVES + 1), _slowdowns(scenario)):
        schedule = _schedule_of(scenario, slowdown, float(octave))
        yield schedule
        order = None if schedule is None else _order(schedule)
        if octave and order != last[slowdown]:
            ahead.append((slowdown, 1, octave - 1.0, last[slowdown], order))
        last[slowdown] = order
    while ahead:
        slowdown, depth, low, at_low, at_high = ahead.popleft()
        half = 2.0**-depth
        schedule = _schedule_of(scenario, slowdown, low + half)
        yield schedule
        between = None if schedule is None else _order(schedule)
        if depth < HALVINGS:
            if between != at_low:
                ahead.append((slowdown, depth + 1, low, at_low, between))
            if between != at_high:
                ahead.append((slowdown, depth + 1, low + half, between, at_high))


def _slowdowns(scenario: Scenario) -> list[_Slowdown]:
    """All hops together, then each; transfers, and latencies."""
    every = range(len(scenario.wan_hops))
    each = [frozenset(every), *(frozenset((i,)) for i in every if len(every) > 1)]
    return [_Slowdown(figure=figure, hops=hops) for hops in each if hops for figure in FIGURES]


def _schedule_of(scenario: Scenario, slowdown: _Slowdown, octaves: float) -> Schedule | None:
    least = LEAST_OF_OP * float(np.min(scenario.times.forward))
    hops = [scenario.hop_links[stage] for stage in scenario.wan_hops]
    slowed = [
        _slower(hop, slowdown.figure, least, octaves) if i in slowdown.hops else hop
        for i, hop in enumerate(hops)
    ]
    # not `model_copy`, which would keep the properties cached for the scenario's own links
    fields = {name: getattr(scenario, name) for name in Scenario.model_fields}
    built = build(Scenario.model_construct(**{**fields, "wan": slowed}))
    return None if isinstance(built, Infeasible) else built.schedule


def _slower(hop: Link, figure: Figure, least: float, octaves: float) -> Link:
    if octaves == 0:
        return hop
    return hop.model_copy(update={figure: max(getattr(hop, figure), least) * 2**octaves})


def _order(schedule: Schedule) -> Order:
    links = (codes.tobytes() for _, codes in sorted(schedule.link_order.items()))
    return b"".join((schedule.ops.tobytes(), *links))
