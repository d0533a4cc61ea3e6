"""Compiles the engine's kernels, kept on disk: what the first page or command would wait for otherwise."""

import gc
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.analyze.formats import load
from engine.analyze.result import analyze
from engine.inputs import parse
from engine.plan.placement import baselines
from engine.plan.placement.place import place
from engine.plan.placement.problem import problem_of
from engine.plan.placement.request import PlacementRequest
from engine.prefill.replay import replay
from engine.prefill.request import ReplayRequest
from engine.schedule import Frame, Search
from engine.schedule.scenario import POLICIES, Scenario
from engine.schedule.searching.builder import ScheduleBuilder
from engine.schedule.searching.problem import SchedulingProblem
from engine.schedule.searching.starts import starts
from engine.schedule.traversal import straight
from engine.simulate import simulate

CROSSPIPE = "crosspipe"
CELL = {
    "stages": 4,
    "dc_of_stage": [0, 0, 1, 1],
    "pipelines": 2,
    "microbatches": 3,
    "wan": {"latency": 1, "transfer": 1},
}
TIMES = (
    {"forward": 1, "recompute": 1, "backward": 2},
    {"forward": 1, "backward": 1, "weight": 1},
)
DEVICES = {
    "latency_ms": [[abs(i - j) * 10.0 for j in range(12)] for i in range(12)],
    "bandwidth_gbps": [[1.0 + (i * j) % 3 for j in range(12)] for i in range(12)],
    "stages": 3,
    "data_parallel": 4,
    "dp_bytes": 1e8,
    "pp_bytes": 1e7,
    "evaluations": 500,
}
BUBBLES = {
    "bubbles": {"scenario": {**CELL, "times": TIMES[0], "policy": "atlas"}, "slot_ms": 20},
    "profile": {"model": "llama-3-8b", "gpu": "a100-80g"},
    "trace": "azure-code",
    "requests": 50,
    "load": 20,
}


def schedules(policies: Iterable[str]) -> None:
    """One small cell under every one of `policies`, recomputing and with a split backward."""
    for policy in policies:
        for times in TIMES:
            scenario = parse(Scenario, {**CELL, "times": times, "policy": policy})
            simulate(scenario, Search(seconds=120))


def beginnings() -> None:
    """Every way in which `auto` begins, which proves so small a cell before it tries them all."""
    frame = Frame(traversal=straight(4), sharing="temporal")
    scenario = parse(Scenario, {**CELL, "times": TIMES[0], "policy": "auto"})
    builder = ScheduleBuilder(SchedulingProblem(scenario=scenario, frame=frame, split=False))
    for start in starts(builder):
        start.build(builder)


def placement_and_prefill() -> None:
    """A placement and what it is compared with; a replay under both orders of the queue."""
    devices = parse(PlacementRequest, DEVICES)
    place(devices)
    baselines.kernighan_lin(problem_of(devices), devices.seed)
    for order in ("fifo", "longest_fit"):
        replay(parse(ReplayRequest, {**BUBBLES, "controller": {"order": order, "chunk_tokens": 128}}))


def trace() -> None:
    """The replay of a trace, here of a simulated schedule."""
    scenario = parse(Scenario, {**CELL, "times": TIMES[0], "policy": "1f1b"})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps(simulate(scenario).as_dict()))
        analyze(load(path))


def first_half() -> None:
    """Every policy but crosspipe-* and `optimal`, whose solver is C++; `auto` comes last, and uses all."""
    schedules(policy for policy in POLICIES if policy != "optimal" and not policy.startswith(CROSSPIPE))
    beginnings()


def second_half() -> None:
    """As long as the first, which finds on disk what is compiled here."""
    schedules(policy for policy in POLICIES if policy.startswith(CROSSPIPE))
    placement_and_prefill()
    trace()


def main() -> None:
    """Both halves at once, each in a process of its own."""
    began = time.monotonic()
    # The compiler keeps most of what it makes: looking for garbage in it is 7 % of the CPU.
    with ProcessPoolExecutor(2, initializer=gc.set_threshold, initargs=(200_000, 50, 100)) as pool:
        for done in [pool.submit(part) for part in (first_half, second_half)]:
            done.result()
    sys.stderr.write(f"Compiled the kernels in {time.monotonic() - began:.0f} s.\n")


if __name__ == "__main__":
    main()
