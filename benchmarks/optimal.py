"""Time in which `optimal` proves one pipeline of 8 stages and 16 microbatches; how near the greedy comes.

Two data centres of four stages; forward 1, backward 2 (or 1 + 1), memory limit P or 2P, latency and transfer
up to 2. One row per case, with the gap of the bound that is known before the search, and of the best policy
that it starts from. With --greedy: each greedy crosspipe policy against what is proven of its own traversal:
the lower bound, or what the solver proves in --seconds where the two differ (0).

Run: python -m benchmarks.optimal [--quick] [--greedy [--seconds S]]
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

from engine.inputs import parse
from engine.schedule import Scenario, Search
from engine.schedule.optimal import policy
from engine.schedule.optimal_problem import Problem
from engine.schedule.optimal_start import best_known
from engine.simulate import lower_bound, simulate

DELAYS = (0.0, 0.25, 1.0, 2.0)
# traversal and chunks of each greedy policy
TRAVERSAL = {"ud": ("straight", 1), "udsub": ("straight", 2), "loop": ("loop", 2), "wave": ("wave", 2)}
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


def distance(family: str, document: dict[str, Any], seconds: float) -> tuple[float, float, float, bool]:
    """Makespan of the greedy, what is proven of its traversal, CPU seconds, and whether the two are one."""
    scenario = parse(Scenario, {**document, "policy": f"crosspipe-{family}"})
    begin = time.process_time()
    greedy = simulate(scenario)
    took = time.process_time() - begin
    assert greedy.makespan is not None
    proven = greedy.lower_bound
    if seconds and not greedy.optimal:
        traversal, chunks = TRAVERSAL[family]
        choice = {"traversal": traversal, "chunks": chunks, "time_limit_s": seconds}
        proven = max(proven, simulate(parse(Scenario, {**document, **choice})).lower_bound)
    return greedy.makespan, proven, took, greedy.makespan <= proven * (1 + 1e-9)


def print_distances(delays: tuple[float, ...], seconds: float) -> None:
    """The table of greedy policies, and their means and worst cells: at most this far from the optimum."""
    print("policy          B      limit latency transfer  greedy  proven above seconds")
    for family in TRAVERSAL:
        distance(family, next(cases(delays)), 0.0)  # kernels are compiled by then
        above, took = [], []
        for document in cases(delays):
            makespan, proven, cpu_s, closed = distance(family, document, seconds)
            above.append(makespan / proven - 1)
            took.append(cpu_s)
            wan = document["wan"]
            print(
                f"crosspipe-{family:5} {'split' if 'weight' in document['times'] else 'whole':6} "
                f"{document['memory_limit']:5d} {wan['latency']:7g} {wan['transfer']:8g} {makespan:7g} "
                f"{proven:7g} {'     ' if closed else f'{above[-1]:5.1%}'} {cpu_s:7.2f}",
                flush=True,
            )
        best = sum(gap <= 1e-9 for gap in above)
        print(
            f"crosspipe-{family}: mean {statistics.mean(above):.2%}, worst {max(above):.2%} above what is "
            f"proven, {best} of {len(above)} proven optimal; median {statistics.median(took):.2f} s, "
            f"worst {max(took):.2f} s of CPU",
            flush=True,
        )


def print_proofs(delays: tuple[float, ...]) -> None:
    """The table of the solver."""
    print("B      limit latency transfer makespan bound-gap start-gap seconds proven")
    seconds = []
    for document in cases(delays):
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


def main() -> None:
    """Prints one of the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the corners of the grid alone")
    parser.add_argument("--greedy", action="store_true", help="greedy policies instead of the solver")
    parser.add_argument("--seconds", type=float, default=0.0, help="of the solver per cell, with --greedy")
    arguments = parser.parse_args()
    delays = (0.0, 2.0) if arguments.quick else DELAYS
    if arguments.greedy:
        print_distances(delays, arguments.seconds)
    else:
        print_proofs(delays)


if __name__ == "__main__":
    main()
