"""Orders that a policy makes where links are slower than they are.

A list schedule may get longer when a link gets faster; one order of ops and transfers cannot. So the orders
of slower links are candidates too. As a link gets slower a policy's order changes at some points and stays as
it is between them: each way to slow links down is looked at in octaves, and then halved where the orders at
both ends differ.
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
# A figure below this share of the shortest op is slowed down as if it were as long.
LEAST_OF_OP = 1 / 8

Order = bytes
Figure = Literal["transfer", "latency"]
FIGURES: tuple[Figure, ...] = ("transfer", "latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """Which figure of which hops is made larger."""

    figure: Figure
    hops: frozenset[int]


def slower_orders(scenario: Scenario) -> Iterator[Schedule | None]:
    """The orders that the scenario's policy makes for slower links, each once; None for each that it makes
    again, or cannot make: every item takes as long. Nothing for a policy whose orders know no links.
    """
    if isinstance(policy_of(scenario.policy), Static):
        return
    seen: set[Order] = set()
    for found in _halved(scenario):
        order = None if found is None else _order(found)
        yield None if order is None or order in seen else found
        if order is not None:
            seen.add(order)


def _halved(scenario: Scenario) -> Iterator[Schedule | None]:
    """What the policy makes, all ways in octaves first, then between them, breadth first."""
    ahead: deque[tuple[_Way, int, float, Order | None, Order | None]] = deque()
    last: dict[_Way, Order | None] = {}
    for octave, way in itertools.product(range(OCTAVES + 1), _ways(scenario)):
        found = _made(scenario, way, float(octave))
        yield found
        order = None if found is None else _order(found)
        if octave and order != last[way]:
            ahead.append((way, 1, octave - 1.0, last[way], order))
        last[way] = order
    while ahead:
        way, depth, low, at_low, at_high = ahead.popleft()
        half = 2.0**-depth
        found = _made(scenario, way, low + half)
        yield found
        between = None if found is None else _order(found)
        if depth < HALVINGS:
            if between != at_low:
                ahead.append((way, depth + 1, low, at_low, between))
            if between != at_high:
                ahead.append((way, depth + 1, low + half, between, at_high))


def _ways(scenario: Scenario) -> list[_Way]:
    """All hops together, then each; transfers, and latencies."""
    every = range(len(scenario.wan_hops))
    each = [frozenset(every), *(frozenset((i,)) for i in every if len(every) > 1)]
    return [_Way(figure=figure, hops=hops) for hops in each if hops for figure in FIGURES]


def _made(scenario: Scenario, way: _Way, octaves: float) -> Schedule | None:
    least = LEAST_OF_OP * float(np.min(scenario.times.forward))
    hops = [scenario.hop_links[stage] for stage in scenario.wan_hops]
    slowed = [
        _slower(hop, way.figure, least, octaves) if i in way.hops else hop for i, hop in enumerate(hops)
    ]
    # not `model_copy`, which would keep what the scenario worked out of its own links
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
