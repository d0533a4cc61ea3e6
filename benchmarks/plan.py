"""How long Algorithm 1 takes on 5 data centres of 600 GPUs, P = M = 60, C = 4, every D (Atlas §6.4: 55 s).

Bars: under 1 s for the whole command in a fresh process (compiled code on disk), 0.1 s for the computation.
"""

import json
import statistics
import subprocess
import sys
import time

REPEATS = 5
NAMES = "abcde"
DOCUMENT = {
    "datacenters": [
        {"name": name, "gpus": 600, "gpu_type": "a100-80g", "price_per_gpu_hour": 3.4} for name in NAMES
    ],
    "links": [
        {"between": [a, b], "latency_ms": 20, "bandwidth_gbps": 5}
        for i, a in enumerate(NAMES)
        for b in NAMES[i + 1 :]
    ],
    "job": {
        "partitions": 60,
        "microbatches": 60,
        "forward_ms": 13.4,
        "recompute_ms": 13.4,
        "backward_ms": 26.8,
        "comm_to_compute": 4,
        "parameters_per_stage": 4.12e8,
        "activation_bytes": 33_554_432,
    },
    "method": "algorithm1",
}


def whole_command() -> float:
    """Seconds of `meridian plan - --json` in a process of its own."""
    start = time.perf_counter()
    program = [sys.executable, "-m", "engine.cli", "plan", "-", "--json"]
    subprocess.run(program, input=json.dumps(DOCUMENT), text=True, check=True, capture_output=True)
    return time.perf_counter() - start


def computation() -> float:
    """Seconds of the computation alone."""
    from engine.inputs import parse
    from engine.plan.dc_selection import plan
    from engine.plan.request import PlanRequest

    request = parse(PlanRequest, DOCUMENT)
    start = time.perf_counter()
    plan(request)
    return time.perf_counter() - start


def main() -> None:
    for what, measure, bar_s in (("whole command", whole_command, 1.0), ("computation", computation, 0.1)):
        measure()  # fills the cache on disk, loads compiled code
        seconds = [measure() for _ in range(REPEATS)]
        median = statistics.median(seconds)
        verdict = "ok" if median < bar_s else "past the bar"
        print(f"{what:14}  median {median:6.3f} s  worst {max(seconds):6.3f} s  bar {bar_s:.1f} s  {verdict}")


if __name__ == "__main__":
    main()
