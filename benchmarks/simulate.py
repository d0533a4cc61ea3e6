"""Time of building and timing the schedule of a 60 x 60 cell of 4 pipelines, warm, without spans.

Ops per second are those of building alone. CrossPipe's policies are searches: their time is that of all their
runs together, their ops those of the one schedule that is left.

Run: python benchmarks/simulate.py
"""

import statistics
import time

from engine.errors import Infeasible
from engine.inputs import parse
from engine.schedule import Scenario, build
from engine.schedule.ir import NO_OP
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
SPLIT = {"times": {"forward": 1, "recompute": 1, "backward": 1, "weight": 1}}
RULES = {"gpipe": {}, "1f1b": {}, "varuna": {}, "atlas": {}, "interleaved": {}, "zb-h1": SPLIT, "zb-v": SPLIT}
SEARCHES = {"crosspipe-ud": SPLIT, "crosspipe-udsub": SPLIT, "crosspipe-loop": SPLIT, "crosspipe-wave": SPLIT}
ROUNDS = 20


def milliseconds(policy: str, fields: dict, rounds: int) -> tuple[float, float, float, float]:
    """Median time to build, to time, and to simulate with all figures; and ops built per second."""
    scenario = parse(Scenario, {**CELL, **fields, "policy": policy})
    building, timing, whole = [], [], []
    ops = 0
    simulate(scenario)  # loads what is compiled
    for _ in range(rounds):
        begin = time.perf_counter()
        answer = build(scenario)
        assert not isinstance(answer, Infeasible)
        built = time.perf_counter()
        time_schedule(scenario, answer.schedule)
        timed = time.perf_counter()
        simulate(scenario)
        ops = int((answer.schedule.ops != NO_OP).sum())
        building.append(built - begin)
        timing.append(timed - built)
        whole.append(time.perf_counter() - timed)
    medians = [1e3 * statistics.median(values) for values in (building, timing, whole)]
    return medians[0], medians[1], medians[2], ops / (medians[0] / 1e3)


if __name__ == "__main__":
    print("policy           build ms  time ms  simulate ms  million ops/s")
    for policies, rounds in ((RULES, ROUNDS), (SEARCHES, 3)):
        for policy, fields in policies.items():
            build_ms, time_ms, all_ms, speed = milliseconds(policy, fields, rounds)
            print(f"{policy:16} {build_ms:8.2f} {time_ms:8.2f} {all_ms:12.2f} {speed / 1e6:14.2f}")
