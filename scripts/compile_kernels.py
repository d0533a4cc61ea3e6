"""Compiles the engine's kernels, kept on disk: what the first page or command would wait for otherwise."""

import sys
import time

from engine.inputs import parse
from engine.schedule import Search
from engine.schedule.scenario import POLICIES, Scenario
from engine.simulate import simulate

CELL = {
    "stages": 4, "dc_of_stage": [0, 0, 1, 1], "pipelines": 2, "microbatches": 3,
    "wan": {"latency": 1, "transfer": 1},
}  # fmt: skip
TIMES = (
    {"forward": 1, "recompute": 1, "backward": 2},
    {"forward": 1, "backward": 1, "weight": 1},
)


def main() -> None:
    """One small cell under every policy, with recomputation and with a split backward."""
    began = time.monotonic()
    for policy in POLICIES:
        if policy == "optimal":  # a solver in C++
            continue
        for times in TIMES:
            scenario = parse(Scenario, {**CELL, "times": times, "policy": policy})
            simulate(scenario, Search(seconds=120))
    sys.stderr.write(f"Compiled the scheduling kernels in {time.monotonic() - began:.0f} s.\n")


if __name__ == "__main__":
    main()
