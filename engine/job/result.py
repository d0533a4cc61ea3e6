"""The result of a run: measurements of the ranks, and the simulator's prediction."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from engine.job.adapt.measured import of_rows
from engine.job.adapt.replan import as_taken
from engine.job.all_reduce import all_reduces
from engine.job.job import TrainJob
from engine.job.predict import Prediction, predict
from engine.job.wan import wan_rows
from engine.schedule import Schedule
from engine.schedule.scenario import Times
from engine.schedule.text import parse_schedule


def measured_part(job: TrainJob, stats: list[dict[str, Any]]) -> dict[str, Any]:
    """The fields of the result that follow from the ranks' statistics, by rank (Recorder.stats)."""
    iterations_ms = [1e3 * seconds for seconds in stats[0]["iterations_s"]]
    window_s = sum(rank["window_s"] for rank in stats)
    return {
        "iteration_ms": {
            "median": median(iterations_ms) if iterations_ms else None,
            "p95": float(np.percentile(iterations_ms, 95)) if iterations_ms else None,
            "simulated": None,
        },
        "deviation": None,
        "utilization": {
            "measured": sum(rank["busy_s"] for rank in stats) / window_s if window_s else None,
            "simulated": None,
        },
        "allreduce_ms": _median_ms(stats, "all_reduce") if job.sums_gradients else 0.0,
        "all_reduce": all_reduces(job) if job.cell.pipelines > 1 else None,
        "optimizer_ms": _median_ms(stats, "optimizer"),
        "wan": wan_rows(job, stats),
        "peak_rss_mb": max(rank["peak_rss_mb"] for rank in stats),
        **_peak_gpu_mb(stats),
        "overruns": sum(rank["overruns"] for rank in stats),
        "worst_overrun_ms": max(rank["worst_overrun_ms"] for rank in stats),
        "dropped_events": sum(rank["dropped_events"] for rank in stats),
        **({"prefill": _waits(stats)} if "prefill" in stats[0] else {}),
    }


def completed(
    job: TrainJob, schedule: Schedule, result: dict[str, Any], *, taken: Sequence[Any] = ()
) -> dict[str, Any]:
    """The result with the simulator's side filled in, from the per-stage medians that the ranks measured.

    On the emulated device op times are the profile's; elsewhere they are the measured medians themselves.
    Of a run that re-planned each iteration counts with the schedule and the times that held in it: the
    simulated iteration is the median of those, as the measured one is of the measured. `taken`: the times by
    which the layout was chosen, as rows, of a run that moved to it.
    """
    result = dict(result)
    stages, window = result.pop("median_s_of_stage"), result.pop("counted")
    adaptations = result.get("adaptations", [])
    if "adaptations" in result:
        result["adaptations"] = [_without_plan(event) for event in adaptations]
    if not all("optimizer" in stage for stage in stages):
        return result  # fewer iterations than the statistics leave out
    predicted = partial(
        predict,
        job,
        optimizer_s=tuple(stage["optimizer"] for stage in stages),
        allreduce_s=tuple(s.get("all_reduce", 0.0) for s in stages) if job.sums_gradients else None,
    )
    times = None if job.device.kind == "emulated" else _measured_times(stages)
    begun = as_taken(job, schedule, of_rows(taken)) if taken else None
    plans = [(0, predicted(schedule=schedule, times=times, scenario=begun))]
    for event in adaptations:
        holds = parse_schedule(event["schedule"])
        scenario = as_taken(job, holds, of_rows(event["times"]))
        plans.append((event["iteration"], predicted(schedule=holds, scenario=scenario)))
    iteration_s, utilization = _over(plans, window)
    result["iteration_ms"] = {**result["iteration_ms"], "simulated": iteration_s * 1e3}
    if result["iteration_ms"]["median"] is not None:
        result["deviation"] = result["iteration_ms"]["median"] / (iteration_s * 1e3) - 1
    result["utilization"] = {**result["utilization"], "simulated": utilization}
    return result


def counted(stats: list[dict[str, Any]]) -> tuple[int, int]:
    """The iterations of which the statistics are, as [first, end)."""
    end = (stats[0]["last_iteration"] or 0) + 1
    return end - len(stats[0]["iterations_s"]), end


def _over(plans: list[tuple[int, Prediction]], window: Sequence[int]) -> tuple[float, float]:
    """Seconds of an iteration (median) and utilization, over the iterations [first, end) of `window`.

    plans : what is predicted from an iteration on, the first one first.
    """
    first, end = window
    if end <= first:
        return plans[-1][1].iteration_s, plans[-1][1].utilization
    begins = [*(begin for begin, _ in plans), end]
    counts = [max(0, min(until, end) - max(begin, first)) for begin, until in pairwise(begins)]
    lasts = np.array([plan.iteration_s for _, plan in plans])
    shares = np.array([plan.utilization for _, plan in plans])
    weights = lasts * counts
    return float(np.median(np.repeat(lasts, counts))), float(shares @ weights / weights.sum())


def _without_plan(event: dict[str, Any]) -> dict[str, Any]:
    """What the result keeps of an `adapted` event: not the schedule and the times, which are long."""
    return {name: value for name, value in event.items() if name not in ("schedule", "times")}


def _peak_gpu_mb(stats: list[dict[str, Any]]) -> dict[str, float]:
    """Most memory that tensors of one rank took on its GPU, in MB (10^6 bytes); nothing without GPUs."""
    peaks = [rank["peak_gpu_bytes"] for rank in stats if "peak_gpu_bytes" in rank]
    return {"peak_gpu_mb": round(max(peaks) / 1e6, 1)} if peaks else {}


def _waits(stats: list[dict[str, Any]]) -> dict[str, Any]:
    """What training ops waited for chunks of prefill, over all GPUs."""
    waits = [rank["prefill"] for rank in stats]
    return {
        "ops_waited": sum(one["ops"] for one in waits),
        "waited_ms": 1e3 * sum(one["total_s"] for one in waits),
        "longest_wait_ms": 1e3 * max(one["longest_s"] for one in waits),
    }


def medians_of_stages(job: TrainJob, stats: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Median seconds by kind of op for each stage, over its replicas."""
    stages = []
    for stage in range(job.cell.stages):
        replicas = [rank["median_s"] for rank in stats if rank["stage"] == stage]
        kinds = set().union(*replicas)
        stages.append({kind: median(r[kind] for r in replicas if kind in r) for kind in kinds})
    return stages


def _measured_times(stages: list[dict[str, float]]) -> Times:
    return Times(
        forward=[1e3 * stage["F"] for stage in stages],
        backward=[1e3 * stage["B"] for stage in stages],
        weight=[1e3 * stage.get("W", 0.0) for stage in stages],
        recompute=[1e3 * stage.get("R", 0.0) for stage in stages],
    )


def _median_ms(stats: list[dict[str, Any]], kind: str) -> float | None:
    values = [rank["median_s"][kind] for rank in stats if kind in rank["median_s"]]
    return 1e3 * median(values) if values else None
