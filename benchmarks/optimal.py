"""Time in which `optimal` proves one pipeline of 8 stages and 16 microbatches over latency and transfer.

Two data centres of four stages; forward 1, backward 2 (or 1 + 1), memory limit P or 2P. One row per case,
with the gap of the bound that is known before the search, and of the best policy that it starts from.

Run: python benchmarks/optimal.py [--quick]
"""

import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from engine.inputs import parse
from engine.schedule import Scenario, Search
from engine.schedule.optimal import policy
from engine.schedule.optimal_problem import Problem
from engine.schedule.optimal_start import best_known
from engine.simulate import lower_bound, simulate

DELAYS = (0, 0.25, 1, 2)
FUSED = {"forward": 1, "backward": 2}
SPLIT = {"forward": 1, "backward": 1, "weight": 1}
CELL = {
    "stages": 8,
    "dc_of_stage": [0] * 4 + [1] * 4,
    "microbatches": 16,
    "spans": False,
    "policy": "optimal",
}


def cases(delays: tuple[float, ...]) -> Iterator[dict[str, Any]]:
    """The grid."""
    for times, limit, latency, transfer in itertools.product((FUSED, SPLIT), (8, 16), delays, delays):
        wan = {"latency": latency, "transfer": transfer}
        yield {**CELL, "times": times, "memory_limit": limit, "wan": wan}


def row(document: dict[str, Any]) -> tuple[float, float, float, float, bool]:
    """Makespan, gap of the bound and of the start to it, seconds, and whether it is proven."""
    scenario = parse(Scenario, document)
    (frame,) = policy.frames(scenario)
    bound = lower_bound(scenario, frame)
    start = best_known(scenario, frame, Problem.of(scenario, frame), Search()).makespan
    begin = time.perf_counter()
    result = simulate(scenario)
    took = time.perf_counter() - begin
    assert result.makespan is not None
    return result.makespan, result.makespan / bound - 1, start / result.makespan - 1, took, result.optimal


def main() -> None:
    """Prints the table."""
    print("B      limit latency transfer makespan bound-gap start-gap seconds proven")
    seconds = []
    for document in cases((0, 2) if "--quick" in sys.argv else DELAYS):
        makespan, bound_gap, start_gap, took, proven = row(document)
        seconds.append(took)
        wan = document["wan"]
        print(
            f"{'split' if 'weight' in document['times'] else 'whole':6} {document['memory_limit']:5d} "
            f"{wan['latency']:7g} {wan['transfer']:8g} {makespan:8g} {bound_gap:9.2%} {start_gap:9.2%} "
            f"{took:7.2f} {'yes' if proven else 'NO'}",
            flush=True,
        )
    print(f"median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
