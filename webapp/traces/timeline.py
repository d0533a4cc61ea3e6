"""One iteration of a trace as the canvas draws it."""

from typing import Any

import numpy as np

from engine.analyze import trace as ops
from engine.analyze.result import Analysis
from engine.analyze.trace import BUSY, KINDS, Ints, Trace
from engine.job.codes import OPS, Code

# Kinds that a lane shows; the others are no op of a GPU, or of a profile that does not tell which op.
DRAWN = {
    ops.FORWARD: OPS["F"],
    ops.BACKWARD: OPS["B"],
    ops.RECOMPUTE: OPS["R"],
    ops.WEIGHT: OPS["W"],
    ops.ALL_REDUCE: OPS["all_reduce"],
    ops.ALL_GATHER: OPS["all_reduce"],
    ops.REDUCE_SCATTER: OPS["all_reduce"],
    ops.SEPARATE: OPS["all_reduce"],
    ops.LAYERNORM: OPS["all_reduce"],
    ops.EMBEDDING: OPS["all_reduce"],
    ops.OPTIMIZER: OPS["optimizer"],
    ops.CLIP: OPS["optimizer"],
}
PLACE = "All workers"  # a trace does not say in which data centre a worker is


def drawn(analysis: Analysis, most: int) -> dict[str, Any]:
    """The snapshot of the median iteration: the lanes of the first replicas, with at most `most` spans.

    {"none": reason} where no lane can be drawn; {"too_large": spans} where one replica has more spans.
    """
    trace, step = analysis.trace, _median_step(analysis)
    of_step = np.flatnonzero(trace.step == step)
    rows = of_step[trace.is_kind(*DRAWN)[of_step]]
    if not len(rows):
        return {"none": "The trace does not tell forwards from backwards, so there is no timeline."}
    layout = trace.layout
    spans_up_to = np.cumsum(np.bincount(trace.replica[rows], minlength=layout.replicas))
    replicas = int(np.searchsorted(spans_up_to, most, side="right"))
    if replicas == 0:
        return {"too_large": int(spans_up_to[0])}
    begin, end = trace.start[of_step].min(), trace.end[of_step].max()
    busy_s = trace.duration[of_step[trace.is_kind(*BUSY)[of_step]]].sum()
    return {
        "measured": True,
        "iteration": int(step),
        "replicas": replicas,
        "of_replicas": layout.replicas,
        "dcs": [{"name": PLACE}],
        "links": [],
        "lanes": _lanes(replicas, layout.stages),
        "predicted": {
            "iteration_ms": float(1e3 * (end - begin)),
            "utilization": float(busy_s / ((end - begin) * layout.workers)),
            "spans": _codes(trace, rows[trace.replica[rows] < replicas], replicas, float(begin)),
        },
    }


def _median_step(analysis: Analysis) -> int:
    """The step of the critical path, or the median one where nothing was replayed."""
    if analysis.slowdowns is not None:
        return int(analysis.slowdowns.critical_path[0]["step"])
    steps, times = analysis.idle.steps, analysis.idle.step_s
    return int(steps[np.argsort(times)[(len(times) - 1) // 2]])


def _lanes(replicas: int, stages: int) -> list[dict[str, Any]]:
    return [
        {
            "rank": replica * stages + stage,
            "pipeline": replica,
            "stage": stage,
            "dc": 0,
            "gpu": None,
            "node": None,
        }
        for replica in range(replicas)
        for stage in range(stages)
    ]


def _codes(trace: Trace, rows: Ints, replicas: int, origin: float) -> list[list[Any]]:
    """[rank, code, …] of each lane, by start; times in ms since `origin`."""
    stages = trace.layout.stages
    lanes: list[list[Any]] = [[rank] for rank in range(replicas * stages)]
    for row in rows[np.argsort(trace.start[rows], kind="stable")].tolist():
        microbatch = int(trace.microbatch[row])
        start, end = (round(1e3 * (float(at[row]) - origin), 3) for at in (trace.start, trace.end))
        code: Code = [DRAWN[KINDS[trace.kind[row]]], microbatch if microbatch >= 0 else None, start, end]
        lanes[int(trace.replica[row]) * stages + int(trace.stage[row])].append(code)
    return lanes
