"""How long `meridian place` takes: N = 64 on 8 stages (bar 2 s), N = 1,024 on 16 (bar 60 s), compiled before.

Networks: random links (the hardest to match), and regions with fast links inside. Prints wall clock and CPU
time of the whole command in a process of its own, and what it gained over the best structured start.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BARS = ((64, 8, 2.0), (1024, 16, 60.0))
REPEATS = {64: 5, 1024: 1}
REGIONS = 10


def document(devices: int, stages: int, kind: str) -> dict[str, object]:
    """A request with links drawn from a fixed seed."""
    rng = np.random.default_rng(devices)
    latency = rng.uniform(1, 250, (devices, devices))
    bandwidth = np.exp(rng.uniform(np.log(0.1), np.log(10), (devices, devices)))
    if kind == "regions":
        region = rng.integers(0, REGIONS, devices)
        far_ms, gbps = rng.uniform(10, 250, (REGIONS, REGIONS)), rng.uniform(0.3, 1.3, (REGIONS, REGIONS))
        latency = far_ms[region][:, region] * rng.uniform(0.95, 1.05, (devices, devices))
        bandwidth = gbps[region][:, region] * rng.uniform(0.9, 1.1, (devices, devices))
        same = region[:, None] == region[None]
        latency[same], bandwidth[same] = 5, 2
    return {
        "latency_ms": ((latency + latency.T) / 2).tolist(),
        "bandwidth_gbps": ((bandwidth + bandwidth.T) / 2).tolist(),
        "stages": stages,
        "data_parallel": devices // stages,
        "dp_bytes": 3e8,
        "pp_bytes": 1e9,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One command: wall clock and CPU time, and its answer."""

    wall_s: float
    cpu_s: float
    answer: dict[str, Any]


def whole_command(path: Path) -> Run:
    """Runs `meridian place --json` in a process of its own."""
    start, before = time.perf_counter(), os.times()
    program = [sys.executable, "-m", "engine.cli", "place", str(path), "--json"]
    done = subprocess.run(program, text=True, check=True, capture_output=True)
    wall_s, after = time.perf_counter() - start, os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(wall_s=wall_s, cpu_s=cpu_s, answer=json.loads(done.stdout))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for devices, stages, bar_s in BARS:
            for kind in ("random", "regions"):
                path = Path(folder) / f"{devices}-{kind}.json"
                path.write_text(json.dumps(document(devices, stages, kind)), encoding="utf-8")
                whole_command(path)  # fills the cache on disk
                runs = [whole_command(path) for _ in range(REPEATS[devices])]
                report(devices, stages, kind, bar_s, runs)


def report(devices: int, stages: int, kind: str, bar_s: float, runs: list[Run]) -> None:
    """Two lines for one network."""
    worst, cpu_s = max(run.wall_s for run in runs), min(run.cpu_s for run in runs)
    answer = runs[0].answer
    start = min(one["cost_s"] for one in answer["starts"])
    print(
        f"N = {devices:5}, P = {stages:2}, {kind:7}  worst {worst:6.2f} s, CPU {cpu_s:.2f} s, "
        f"bar {bar_s:.0f} s: {'ok' if worst < bar_s else 'past the bar'}"
    )
    print(
        f"    {answer['evaluations']:,} evaluations: cost {answer['cost_s']:.2f} s, best start {start:.2f} s"
    )


if __name__ == "__main__":
    main()
