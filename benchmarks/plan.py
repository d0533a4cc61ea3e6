"""How long `meridian plan` takes: Algorithm 1, the search, a what-if, and a very large cluster.

5 data centres of 600 GPUs, P = M = 60, C = 4, every D (Atlas §6.4: 55 s); the same with five sizes; 100 data
centres of 10,000 GPUs. Bars: a whole command in a fresh process under 1 s (compiled code on disk), a what-if
under 0.2 s, the large cluster under 30 s and 2 GB. CPU time is that of the process and its threads: what the
wall time would be on a machine with nothing else to do.
"""

import copy
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

REPEATS = 5
SIZES = (600, 500, 400, 300, 200)
JOB = {
    "partitions": 60,
    "microbatches": 60,
    "forward_ms": 13.4,
    "recompute_ms": 13.4,
    "backward_ms": 26.8,
    "comm_to_compute": 4,
    "parameters_per_stage": 4.12e8,
    "activation_bytes": 33_554_432,
}
ONE_LAYOUT = {"model": "llama-3-8b", "partitions": 32, "microbatches": 60}
BALANCED = {
    "model": "llama-3-70b",
    "partitions": 40,
    "tp": 8,
    "microbatches": 60,
    "layers_per_stage": "balanced",
}
TWELVE_LAYOUTS = {
    "model": "llama-3-70b",
    "partitions": [20, 40, 80],
    "tp": [1, 2, 4, 8],
    "microbatches": 60,
}


def document(gpus: tuple[int, ...], method: str, job: dict[str, Any] = JOB) -> dict[str, Any]:
    """Data centres of `gpus` GPUs; links of 5 Gbps between all, latencies that repeat.

    If layers are to be balanced, every other data centre has V100s.
    """
    types = ("a100-80g", "v100") if job.get("layers_per_stage") == "balanced" else ("a100-80g",)
    names = [f"dc{i}" for i in range(len(gpus))]
    return {
        "datacenters": [
            {"name": name, "gpus": n, "gpu_type": gpu_type, "price_per_gpu_hour": 3.4}
            for name, n, gpu_type in zip(names, gpus, itertools.cycle(types))
        ],
        "links": [
            {
                "between": [a, b],
                "latency_ms": 20 + 5 * (i % 4 if len(gpus) > len(SIZES) else 0),
                "bandwidth_gbps": 5,
            }
            for i, (a, b) in enumerate(itertools.combinations(names, 2))
        ],
        "job": job,
        "method": method,
    }


DOCUMENT = document((600,) * 5, "algorithm1")


def whole_command(method: str) -> tuple[float, float]:
    """Wall and CPU seconds of `meridian plan - --json` in a process of its own."""
    text = json.dumps(document((600,) * 5, method))
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    program = [sys.executable, "-m", "engine.cli", "plan", "-", "--json"]
    subprocess.run(program, input=text, text=True, check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def computation(
    gpus: tuple[int, ...], method: str, *, what_if: bool = False, job: dict[str, Any] = JOB
) -> tuple[float, float]:
    """Wall and CPU seconds of the computation alone, in this process."""
    from engine.inputs import parse
    from engine.plan.answer import FULL_S, WHAT_IF_S, plan
    from engine.plan.request import PlanRequest

    request = parse(PlanRequest, copy.deepcopy(document(gpus, method, job)))
    start, cpu = time.perf_counter(), time.process_time()
    plan(request, budget_s=WHAT_IF_S if what_if else FULL_S)
    return time.perf_counter() - start, time.process_time() - cpu


def report(what: str, measure: Callable[[], tuple[float, float]], bar_s: float, repeats: int) -> None:
    """Medians after one run that fills the cache on disk and loads compiled code, against the bar."""
    measure()
    walls, cpus = zip(*(measure() for _ in range(repeats)), strict=True)
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    verdict = "ok" if wall < bar_s else "ok in CPU time" if cpu < bar_s else "past the bar"
    print(f"{what:36}  wall {wall:6.3f} s  CPU {cpu:6.3f} s  bar {bar_s:4.1f} s  {verdict}", flush=True)


def main() -> None:
    """Every measurement, and the most memory that this process ever had."""
    even, large = (600,) * 5, (10_000,) * 100
    report("whole command, Algorithm 1", lambda: whole_command("algorithm1"), 1.0, REPEATS)
    report("whole command, search", lambda: whole_command("search"), 1.0, REPEATS)
    report("Algorithm 1", lambda: computation(even, "algorithm1"), 0.1, REPEATS)
    report("what-if, 5 × 600", lambda: computation(even, "search", what_if=True), 0.2, REPEATS)
    report("what-if, 600 … 200", lambda: computation(SIZES, "search", what_if=True), 0.2, REPEATS)
    jobs = {"one layout": ONE_LAYOUT, "12 layouts": TWELVE_LAYOUTS, "balanced": BALANCED}
    for layouts, job in jobs.items():
        for gpus in (even, SIZES):

            def asked(gpus: tuple[int, ...] = gpus, job: dict[str, Any] = job) -> tuple[float, float]:
                return computation(gpus, "search", what_if=True, job=job)

            sizes = f"{gpus[0]} … {gpus[-1]}" if gpus is SIZES else f"{len(gpus)} × {gpus[0]}"
            report(f"what-if, {sizes}, a model, {layouts}", asked, 0.2, REPEATS)
    report("search, 5 × 600", lambda: computation(even, "search"), 1.0, REPEATS)
    report("search, 100 × 10,000", lambda: computation(large, "search"), 30.0, 1)
    most_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"most memory: {most_gb:.2f} GB (bar 2 GB)")


if __name__ == "__main__":
    main()
