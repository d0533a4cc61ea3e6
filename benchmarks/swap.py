"""Runs swap jobs on the emulated device beside their plans: ``python -m benchmarks.swap``.

The example with the smallest accumulation that hides loading, with gradients on the host and on the device,
and with less accumulation, where the planner says how long the device will wait. Last, the example while one
worker joins, one leaves and one is killed: every microbatch of every global batch once, the same losses.
"""

import itertools
import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from engine.inputs import parse
from engine.job.changed import changed
from engine.job.events.event import Event
from engine.job.events.training import Step
from engine.job.job import TrainJob
from engine.job.launch import single_machine
from engine.job.swap.planned import planned
from engine.run.launcher import RankGroup

EXAMPLE = Path(__file__).parent.parent / "examples" / "swap-train.json"
LONGEST_RUN_S = 600
IN_THE_MIDDLE_S = 2.0  # of an iteration of the example, which takes over 3 s
BAR = 0.92  # of a step's utilization, on a plan that the planner calls feasible


def example(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The document of the example with other fields, by their path."""
    return changed(json.loads(EXAMPLE.read_text()), changes or {})


def smallest(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the smallest number of microbatches a step whose plan is feasible."""
    for microbatches in itertools.count(1):
        tried = changed(document, {"cell.microbatches": microbatches})
        if planned(parse(TrainJob, tried)).result.feasible:
            return tried
    raise AssertionError


def train(
    document: dict[str, Any], kill_after: int | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train one job; kill its first worker after so many steps. Returns its result and its events."""
    events: list[dict[str, Any]] = []

    def on_event(event: Event) -> None:
        events.append(event.to_dict())
        if isinstance(event, Step) and event.iteration + 1 == kill_after:
            first = next(e["pid"] for e in events if e["kind"] == "rank" and e["rank"] == 0)
            threading.Timer(IN_THE_MIDDLE_S, os.kill, (first, signal.SIGKILL)).start()

    with tempfile.TemporaryDirectory() as logs:
        group = RankGroup(single_machine(parse(TrainJob, document), run="bench", log_dir=logs), on_event)
        group.start()
        try:
            assert group.wait(LONGEST_RUN_S), "the run did not end"
        finally:
            group.stop(0.0)
    return next(event for event in events if event["kind"] == "result"), events


def compare() -> bool:
    """Measured beside planned; whether a step's utilization reaches the bar where the plan is feasible.

    "of all" is the share of whole iterations: with all-reduce, optimizer, and what no step hides.
    """
    gpu = {**example()["strategy"]["gpu"], "memory_bytes": 4_500_000}
    device = {"strategy.gpu": gpu, "strategy.gradients": "device"}
    rows = {
        "gradients on host": smallest(example()),
        "gradients on device": smallest(example(device)),
        "half the microbatches": example({"cell.microbatches": 2}),
        "one microbatch": example({"cell.microbatches": 1}),
    }
    heads = ("C", "parts", "step ms", "planned", "busy", "planned", "of all", "planned", "overruns")
    print(f"{'job':22}" + "".join(f"{head:>9}" for head in heads))
    reached = True
    for name, document in rows.items():
        result, _ = train(document)
        swap, use = result["swap"], result["utilization"]
        busy = swap["step_utilization"]
        row = [f"{swap['accumulation']}", f"{len(swap['sub_models'])}"]
        row += [f"{swap['step_ms'][kind]:.1f}" for kind in ("median", "planned")]
        row += [f"{share:.1%}" for share in (*busy.values(), use["measured"], use["simulated"])]
        print(f"{name:22}" + "".join(f"{cell:>9}" for cell in (*row, result["overruns"])), flush=True)
        reached &= not swap["feasible"] or busy["measured"] >= BAR
    return reached


def elastic() -> bool:
    """One joins, one leaves, one is killed; whether every microbatch of every batch counted once."""
    gpu = {"memory_bytes": 4_500_000, "host_to_device_gb_s": 0.012}  # for numbers twice as wide
    double = {"strategy.gpu": gpu, "optimizer.steps": 10, "device.dtype": "fp64"}
    come_and_go = {
        "strategy.joins": [{"after_step": 1, "device": 3}],
        "strategy.leaves": [{"after_step": 4, "worker": 1}],
    }
    result, events = train(example(double | come_and_go), kill_after=6)
    plain, _ = train(example(double))
    batches = [sorted(itertools.chain(*e["units"].values())) for e in events if e["kind"] == "batch"]
    once = all(units == list(range(len(units))) for units in batches) and len(batches) == 10
    off = max(abs(a - b) for a, b in zip(result["losses"], plain["losses"], strict=True))
    for change in result["swap"]["changes"]:
        print("  ", change)
    print(
        f"joined, left, killed: {len(batches)} batches of {len(batches[0])} microbatches, each once: {once}; "
        f"{result['swap']['redone']} done again; losses off by {off:.1e}"
    )
    return once and off < 1e-9


def main() -> int:
    """Run all, and say whether the bars are met."""
    return 0 if all([compare(), elastic()]) else 1


if __name__ == "__main__":
    sys.exit(main())
