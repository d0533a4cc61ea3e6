"""Time of building and timing the schedule of a 60 x 60 cell of 4 pipelines, warm, without spans.

Run: python benchmarks/simulate.py
"""

import statistics
import time

from engine.inputs import parse
from engine.schedule import Scenario, Schedule, build
from engine.simulate import simulate, time_schedule

CELL = {
    "stages": 60,
    "dc_of_stage": [stage // 12 for stage in range(60)],
    "pipelines": 4,
    "microbatches": 60,
    "times": {"forward": 1, "recompute": 1, "backward": 2},
    "wan": {"latency": 0, "transfer": 4},
    "spans": False,
}
ROUNDS = 20


def milliseconds(policy: str) -> tuple[float, float, float]:
    """Median time to build, to time, and to simulate with all figures."""
    scenario = parse(Scenario, {**CELL, "policy": policy})
    building, timing, whole = [], [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        schedule = build(scenario)
        assert isinstance(schedule, Schedule)
        built = time.perf_counter()
        time_schedule(scenario, schedule)
        timed = time.perf_counter()
        simulate(scenario)
        building.append(built - begin)
        timing.append(timed - built)
        whole.append(time.perf_counter() - timed)
    return tuple(1e3 * statistics.median(values) for values in (building, timing, whole))  # type: ignore[return-value]


if __name__ == "__main__":
    print("policy   build ms  time ms  simulate ms")
    for policy in ("gpipe", "1f1b", "varuna", "atlas"):
        build_ms, time_ms, all_ms = milliseconds(policy)
        print(f"{policy:8} {build_ms:8.2f} {time_ms:8.2f} {all_ms:12.2f}")
