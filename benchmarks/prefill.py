"""Prefill in the bubbles: utilization, acceptance, waiting and search time, beside their bars.

The 12-GPU cell of Atlas §6.2 (P = 4 on (2, 1, 1), 3 pipelines, C = 3, M = 4, F = 17.9 ms) and 1,000 GPUs in
50 cells of 20, with the lengths and arrivals of the Azure code trace and Llama-3-8B on A100s, chunks of at
least 128 tokens. Search time is CPU time of the thread, as other work may run on the machine.

Run: python -m benchmarks.prefill
"""

import resource
import time
from typing import Any

import numpy as np

from engine.prefill.replay import ReplayResult
from engine.prefill.trace import Trace, read_trace
from engine.reproduce import bubbletea
from engine.reproduce.bubbletea import CELLS, CHUNKED, LARGE, TESTBED, half_load

POINTS = [[512, 35], [1024, 77], [2048, 152], [4096, 304], [8192, 665], [16384, 1570]]


def run(
    scenario: dict[str, Any], controller: dict[str, Any], trace: Trace | None = None, **fields: Any
) -> ReplayResult:
    """A replay with the times of Llama-3-8B on an A100."""
    return bubbletea.run(scenario, controller, trace, profile={"points": POINTS}, **fields)


def report(name: str, result: ReplayResult, bars: dict[str, tuple[float, float]]) -> None:
    """One block: what was asked and reached, and each bar as (reached, bar); "at most" or "at least"."""
    quantiles = result.queue_ms, result.ttft_ms
    waits, ttft = (f"{q.p50 or 0:.1f} / {q.p95 or 0:.1f} / {q.p99 or 0:.1f}" for q in quantiles)
    print(f"{name}: load {result.request.load:g} × the trace, offered share {result.offered_share:.2f}")
    print(
        f"    utilization {result.utilization_before:.1%} -> {result.utilization_after:.1%}, accepted "
        f"{result.accepted:,} of {result.requests:,} ({result.accepted / result.requests:.1%})"
    )
    print(f"    ms, p50 / p95 / p99: waiting {waits}, to the KV cache {ttft}; missed {result.ttft_missed}")
    search = result.search_us
    print(f"    search, µs of CPU: p50 {search.p50:.1f}, p99 {search.p99:.1f}, max {search.max:.0f}")
    print(f"    training slow-down {result.training_slowdown:.2%}")
    for bar, (reached, limit) in bars.items():
        ok = reached <= limit if bar.endswith("at most") else reached >= limit
        print(f"    {bar} {limit:g}: {reached:.4g} {'ok' if ok else 'PAST THE BAR'}")


def testbed() -> None:
    """Utilization of the 12 GPUs under demand without end, with and without an objective."""
    run(TESTBED, CHUNKED, requests=1000)  # compiled, and loaded from the cache
    full = run(TESTBED, CHUNKED, load=200, requests=40_000)
    bars = {"utilization, %, at least": (100 * full.utilization_after, 94.0)}
    report("12 GPUs, demand without end", full, bars)
    timed = run(TESTBED, {**CHUNKED, "ttft_slo_ms": 2000}, load=200, requests=40_000)
    bars = {
        "utilization, %, at least": (100 * timed.utilization_after, 85.0),
        "missed, at most": (timed.ttft_missed, 0.0),
    }
    report("12 GPUs, 2 s to the KV cache", timed, bars)
    for order in ("fifo", "longest_fit"):
        whole = {"guard_ms": 2, "queue": 8, "order": order}
        result = run(TESTBED, whole, load=200, requests=40_000, too_long="clip")
        report(f"12 GPUs, whole requests, queue 8, {order}", result, {})


def half_the_supply() -> None:
    """What is accepted of demand for half of the bubbles: with the trace's bursts, and arriving evenly."""
    once = run(TESTBED, CHUNKED, load=1)
    load = 0.5 / (once.offered_share or 1)
    for reserve_ms in (0, 10_000):
        half = run(TESTBED, {**CHUNKED, "reserve_ms": reserve_ms}, load=load)
        bars = {"accepted, %, at least": (100 * half.accepted / half.requests, 95.0)} if reserve_ms else {}
        report(f"12 GPUs, half the supply, queue 64, reserved {reserve_ms / 1e3:g} s ahead", half, bars)
    trace = read_trace("azure-code")
    arrival_ms = np.linspace(0.0, trace.arrival_ms[-1], len(trace))
    even = run(TESTBED, CHUNKED, Trace(arrival_ms=arrival_ms, tokens=trace.tokens), load=load)
    bars = {"accepted, %, at least": (100 * even.accepted / even.requests, 95.0)}
    report("12 GPUs, half the supply, arriving evenly, queue 64", even, bars)


def large() -> None:
    """Search and waiting on 1,000 GPUs, in phase and out of it, and 100,000 requests."""
    load = half_load()
    for phase in ("out", "in"):
        result = run(LARGE, CHUNKED, cells=CELLS, phase=phase, load=load)
        search, waits = result.search_us.p99 or 0, result.queue_ms.p95 or 0
        bars = {"search p99, µs, at most": (search, 100.0), "search p99, µs, goal, at most": (search, 20.0)}
        if phase == "out":
            bars["waiting p95, ms, at most"] = (waits, 8.0)
            bars["offered share, at least"] = (result.offered_share or 0, 0.5)
        report(f"1,000 GPUs in 50 cells, phase {phase}", result, bars)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    result = run(LARGE, CHUNKED, cells=CELLS, phase="out", load=load, requests=100_000)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    bars = {
        "s of CPU, at most": (time.process_time() - begin, 60.0),
        "MB of memory more, at most": (grown, 200.0),
    }
    report("1,000 GPUs, 100,000 requests", result, bars)
    for degree in (2, 5):
        result = run(LARGE, CHUNKED, cells=CELLS, phase="in", load=load, pp_degree=degree, hop_ms=1)
        report(f"1,000 GPUs, in phase, prefill on {degree} GPUs", result, {})


if __name__ == "__main__":
    testbed()
    half_the_supply()
    large()
