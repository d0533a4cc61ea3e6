"""The predicted iteration of a job: the simulator's timeline, with all-reduce and optimizer."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.job.all_reduce import stage_parameters, sum_of_stage_s
from engine.job.codes import in_seconds
from engine.job.job import TrainJob
from engine.job.planned import schedule_of
from engine.schedule import Schedule
from engine.schedule.scenario import Scenario, Times
from engine.simulate import Span, time_schedule

# Calibration on two shared cores, for a prediction before anything was measured: fused AdamW takes about 5 ns
# a parameter.
OPTIMIZER_FLOOR_S = 0.5e-3
OPTIMIZER_S_PER_PARAMETER = 5e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One iteration, in seconds from its start.

    iteration_s : from one iteration's start to the next one's in the steady state.
    allreduce_s, optimizer_s : per stage.
    utilization : time in F, R, B, W over iteration_s × GPUs.
    """

    spans: tuple[Span, ...]
    iteration_s: float
    makespan_s: float
    utilization: float
    allreduce_s: tuple[float, ...]
    optimizer_s: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """The prediction as JSON values."""
        return {
            "iteration_s": self.iteration_s,
            "makespan_s": self.makespan_s,
            "utilization": self.utilization,
            "allreduce_s": list(self.allreduce_s),
            "optimizer_s": list(self.optimizer_s),
            "spans": [span.as_dict() for span in self.spans],
        }


def predict(
    job: TrainJob,
    *,
    schedule: Schedule | None = None,
    times: Times | None = None,
    scenario: Scenario | None = None,
    allreduce_s: tuple[float, ...] | None = None,
    optimizer_s: tuple[float, ...] | None = None,
) -> Prediction:
    """Return what one iteration takes.

    Parameters
    ----------
    schedule : of the job, where it is at hand.
    times : op times in milliseconds, for instance measured ones; by default those of the job.
    scenario : the job's with other times of ops and transfers, in place of `times`.
    allreduce_s, optimizer_s : seconds per stage, for instance measured; by default a calibrated model.

    Raises
    ------
    InputError
        The job's limits leave no schedule.
    """
    schedule = schedule or schedule_of(job)
    scenario = scenario or (job.scenario_with(times) if times else job.scenario)
    timeline = time_schedule(scenario, schedule)
    reduce_s = np.asarray(allreduce_s or [sum_of_stage_s(job, s) for s in range(job.cell.stages)])
    step_s = np.asarray(optimizer_s or [_modelled_optimizer_s(job, s) for s in range(job.cell.stages)])
    first = np.nanmin(timeline.op_start, axis=2).min(axis=0) / 1e3
    last = np.nanmax(timeline.op_end, axis=2).max(axis=0) / 1e3  # a stage's replicas wait for each other
    begins = _optimizer_starts(job, last + reduce_s)
    # The next iteration may begin on each stage once its optimizer is done; the stage with the longest way
    # sets the pace (nearly always the first stage, which ends last).
    iteration_s = float(np.max(begins + step_s - first))
    one_cell = [in_seconds(span) for span in timeline.spans()]
    spans = [
        _of_cell(span, cell * job.cell.cell_pipelines) for cell in range(job.cell.cells) for span in one_cell
    ]
    spans += _closing_spans(job, last, reduce_s, begins, step_s)
    busy_s = float(timeline.busy().sum()) * job.cell.cells / 1e3
    return Prediction(
        spans=tuple(spans),
        iteration_s=iteration_s,
        makespan_s=timeline.makespan / 1e3,
        utilization=busy_s / (iteration_s * job.cell.places),
        allreduce_s=tuple(reduce_s.tolist()),
        optimizer_s=tuple(step_s.tolist()),
    )


def _modelled_optimizer_s(job: TrainJob, stage: int) -> float:
    return OPTIMIZER_FLOOR_S + stage_parameters(job, stage) / job.cell.tp * OPTIMIZER_S_PER_PARAMETER


def _optimizer_starts(job: TrainJob, reduced: NDArray[np.float64]) -> NDArray[np.float64]:
    """With a clip the norm of all stages goes up the pipeline and comes back before any may step."""
    if job.optimizer.clip is None:
        return reduced
    latency = job.scenario.hop_latency[:-1] / 1e3
    way_up = np.concatenate([[0.0], np.cumsum(latency)])
    known = float(np.max(reduced + way_up))
    return known + way_up


def _of_cell(span: Span, first: int) -> Span:
    """A span of the cell whose pipelines begin with number `first`: all cells do the same."""
    return replace(span, pipeline=span.pipeline + first) if first else span


def _closing_spans(
    job: TrainJob,
    last: NDArray[np.float64],
    reduce_s: NDArray[np.float64],
    begins: NDArray[np.float64],
    step_s: NDArray[np.float64],
) -> list[Span]:
    spans = []
    for pipeline in range(job.cell.pipelines):
        for stage in range(job.cell.stages):
            where = {"track": "gpu", "pipeline": pipeline, "stage": stage}
            start, begin = float(last[stage]), float(begins[stage])
            if reduce_s[stage] > 0:
                spans.append(Span(**where, op="all_reduce", start=start, end=start + float(reduce_s[stage])))  # type: ignore[arg-type]
            spans.append(Span(**where, op="optimizer", start=begin, end=begin + float(step_s[stage])))  # type: ignore[arg-type]
    return spans
