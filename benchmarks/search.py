"""Search quality: `auto` beside the best single policy and the proven bound, on known and random scenarios.

Run: python -m benchmarks.search [seconds per scenario] [rows|random]
"""

import random
import sys
import time
from typing import Any

from engine.inputs import parse
from engine.schedule import Progress, Scenario, Search
from engine.schedule.registry import MODULES
from engine.simulate import simulate

Doc = dict[str, Any]
WHOLE = {"forward": 1, "recompute": 1, "backward": 2}
SPLIT = {"forward": 1, "recompute": 1, "backward": 1, "weight": 1}
FIG6 = {
    "stages": 6,
    "dc_of_stage": [0, 0, 1, 1, 2, 2],
    "pipelines": 2,
    "microbatches": 4,
    "wan": {"latency": 0, "transfer": 2},
}
TESTBED = {"stages": 4, "dc_of_stage": [0, 0, 1, 2], "pipelines": 3, "wan": {"latency": 0, "transfer": 3}}


def large(pipelines: int) -> Doc:
    """P = M = 60 on five DCs of twelve stages."""
    return {
        "stages": 60,
        "dc_of_stage": [stage // 12 for stage in range(60)],
        "pipelines": pipelines,
        "microbatches": 60,
        "wan": {"latency": 0, "transfer": pipelines},
    }


# Known best of straight schedules with temporal sharing, in slots.
ROWS: list[tuple[str, Doc, float]] = [
    ("Fig. 6, full 1", {**FIG6, "times": WHOLE, "full_limit": 1}, 34),
    ("Fig. 6, full 2", {**FIG6, "times": WHOLE, "full_limit": 2}, 33),
    ("Fig. 6 split, full 1", {**FIG6, "times": SPLIT, "full_limit": 1}, 29),
    ("Fig. 6 split, full 4", {**FIG6, "times": SPLIT, "full_limit": 4}, 26),
    ("testbed M = 4", {**TESTBED, "times": WHOLE, "microbatches": 4}, 28),
    ("testbed M = 16", {**TESTBED, "times": WHOLE, "microbatches": 16}, 76),
    ("testbed M = 4, full 1", {**TESTBED, "times": WHOLE, "microbatches": 4, "full_limit": 1}, 29),
    ("testbed M = 16, full 1", {**TESTBED, "times": WHOLE, "microbatches": 16, "full_limit": 1}, 77),
    ("testbed split, M = 4", {**TESTBED, "times": SPLIT, "microbatches": 4}, 24),
    ("testbed split, M = 16", {**TESTBED, "times": SPLIT, "microbatches": 16}, 70),
    ("60 x 60, C = 2", {**large(2), "times": WHOLE}, 423),
    ("60 x 60, C = 4", {**large(4), "times": WHOLE}, 436),
    ("60 x 60 split, C = 2", {**large(2), "times": SPLIT}, 306),
    ("60 x 60 split, C = 4", {**large(4), "times": SPLIT}, 368),
]
STRAIGHT = {"sharing": "temporal", "traversal": "straight", "chunks": 1}


def random_scenario(seed: int) -> Doc:
    """P ≤ 12, M ≤ 16, up to 3 WAN hops, limits; durations in whole slots, alike or not."""
    draw = random.Random(seed)
    stages = draw.randint(2, 12)
    hops = sorted(draw.sample(range(1, stages), min(draw.randint(0, 3), stages - 1)))

    def duration(low: int, high: int) -> int | list[int]:
        if draw.random() < 0.5:
            return draw.randint(low, high)
        return [draw.randint(low, high) for _ in range(stages)]

    document: Doc = {
        "stages": stages,
        "dc_of_stage": [sum(stage >= hop for hop in hops) for stage in range(stages)],
        "pipelines": draw.randint(1, 4),
        "microbatches": draw.randint(2, 16),
        "times": {
            "forward": duration(2, 4),
            "backward": duration(2, 6),
            "recompute": draw.choice([0, duration(2, 4)]),
            "weight": draw.choice([0, duration(1, 3)]),
        },
        "wan": [{"latency": draw.randint(0, 6), "transfer": draw.randint(0, 10)} for _ in hops],
        "lan": draw.choice([{}, {"latency": 0, "transfer": 1}]),
    }
    if draw.random() < 0.5:
        document["memory_limit"] = draw.randint(2, stages + 2)
    if draw.random() < 0.5:
        document["full_limit"] = draw.randint(1, 3)
    return document


def best_policy(document: Doc) -> tuple[float, str]:
    """The best of the other policies that allow what the document asks."""
    results = []
    for name in MODULES:
        if name in ("auto", "optimal"):
            continue
        try:
            makespan = simulate(parse(Scenario, {**document, "policy": name, "spans": False})).makespan
        except ValueError:
            continue
        if makespan is not None:
            results.append((makespan, name))
    return min(results)


def line(name: str, document: Doc, seconds: float, known: float | None) -> tuple[str, float, float, float]:
    """One row of the table, and the makespans of the best policy and of auto, and the bound.

    known : the best makespan known so far.
    """
    makespan, policy = best_policy(document)
    steps: list[Progress] = []
    begin = time.perf_counter()
    scenario = parse(Scenario, {**document, "policy": "auto", "spans": False})
    result = simulate(scenario, Search(seconds=seconds, report=steps.append))
    took = time.perf_counter() - begin
    assert result.makespan is not None
    assert result.gap is not None
    assert result.chosen is not None
    last = steps[-1].elapsed_s if steps else 0.0
    row = (
        f"{name:24} {makespan:8g} {policy:16} {result.makespan:8g} {known or '':>6} {result.lower_bound:8g} "
        f"{100 * result.gap:6.1f} {took:6.1f} {last:6.1f}  {result.chosen.idea}"
    )
    return row, makespan, result.makespan, result.lower_bound


def summary(rows: list[tuple[float, float, float]]) -> str:
    """Of best policy, auto and bound: how often auto is better where the policy leaves a gap above 5 %."""
    open_gaps = [(policy, auto) for policy, auto, bound in rows if policy > 1.05 * bound]
    better = sum(auto < policy * (1 - 1e-9) for policy, auto in open_gaps)
    worse = sum(auto > policy * (1 + 1e-9) for policy, auto, _ in rows)
    return f"gap of the best policy above 5 %: {len(open_gaps)}, auto better: {better}; auto worse: {worse}"


def main(seconds: float, what: str) -> None:
    """Prints the table."""
    titles = f"{'policy':>8} {'':16} {'auto':>8} {'known':>6} {'bound':>8} {'gap %':>6} {'s':>6} {'found':>6}"
    print(f"{'scenario':24} {titles}  idea")
    if what != "random":
        for name, document, known in ROWS:
            print(line(name, {**document, **STRAIGHT}, seconds, known)[0], flush=True)
    if what != "rows":
        results = []
        for seed in range(20):
            row, *figures = line(f"random {seed}", random_scenario(seed), seconds, None)
            results.append((figures[0], figures[1], figures[2]))
            print(row, flush=True)
        print(summary(results))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0, sys.argv[2] if len(sys.argv) > 2 else "all")
