"""What the engine predicts of a job, as span codes: at launch, and where a run re-plans."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.inputs import parse
from engine.job.adapt.measured import of_rows
from engine.job.adapt.replan import as_taken
from engine.job.codes import code_of
from engine.job.job import TrainJob
from engine.job.planned import schedule_of
from engine.job.predict import Prediction, predict
from engine.job.swap.predicted import predict_swap
from engine.schedule.text import parse_schedule
from webapp.jobs.models import Run

Rows = Iterable[Sequence[Any]]  # of times, as events have them
PositionOfRank = Mapping[str, Sequence[int]]  # rank → its pipeline and stage


def predicted_payload(
    document: dict[str, Any], *, position_of_rank: PositionOfRank | None = None
) -> dict[str, Any]:
    """{iteration_ms, utilization, spans: [[rank, code…]]} of one iteration; times in ms from its start.

    Empty for workers that swap on a device of which no times are known.

    position_of_rank : (pipeline, stage), where they are not those of a launch.
    """
    job = parse(TrainJob, document)
    if job.swap_strategy:
        return _payload(job, predict_swap(job), None) if job.device.times_ms else {}
    return _payload(job, predict(job), position_of_rank)


def measured_payload(
    document: dict[str, Any],
    schedule_text: str | None,
    times: Rows,
    *,
    position_of_rank: PositionOfRank | None = None,
) -> dict[str, Any]:
    """The same with the measured times of an event, and its schedule; None: that of the document.

    Raises
    ------
    InputError, TypeError or ValueError
        They are none of this job.
    """
    job = parse(TrainJob, document)
    schedule = schedule_of(job) if schedule_text is None else parse_schedule(schedule_text)
    size = (schedule.stages, schedule.pipelines, schedule.microbatches)
    if size != (job.cell.stages, job.cell.cell_pipelines, job.cell.microbatches_of_step):
        raise ValueError(
            f"a schedule of {size} (stages, pipelines, microbatches) does not belong to this job"
        )
    scenario = as_taken(job, schedule, of_rows(times))
    return _payload(job, predict(job, schedule=schedule, scenario=scenario), position_of_rank)


def present_job(run: Run) -> tuple[dict[str, Any], PositionOfRank | None] | None:
    """The document of what `run` computes at present, and who computes what where that is not as at launch.

    None where it is not known: rows and agents of before 2026-11-25 do not say it of fewer GPUs.
    """
    if not run.cuts:
        return run.job.document, None
    cut = run.cuts[-1]
    return (cut["job"], cut["position_of_rank"]) if "job" in cut else None


def _payload(
    job: TrainJob, prediction: Prediction, position_of_rank: PositionOfRank | None
) -> dict[str, Any]:
    ranks = {(at[0], at[1]): int(rank) for rank, at in (position_of_rank or {}).items()}
    spans: dict[int, list[Any]] = {}
    for span in prediction.spans:
        stage = span.stage if span.track == "gpu" else span.from_stage
        if stage is not None:
            rank = ranks[span.pipeline, stage] if ranks else span.pipeline * job.cell.stages + stage
            spans.setdefault(rank, [rank]).append(code_of(span, origin=0.0))
    return {
        "iteration_ms": round(prediction.iteration_s * 1e3, 3),
        "utilization": round(prediction.utilization, 4),
        "spans": [spans[rank] for rank in sorted(spans)],
    }
