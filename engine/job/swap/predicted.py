"""The predicted iteration of a swap job as spans: its planned steps, then what no step hides."""

from collections.abc import Iterator
from dataclasses import replace

from engine.job.all_reduce import sum_of_stage_s
from engine.job.job import TrainJob
from engine.job.predict import OPTIMIZER_FLOOR_S, OPTIMIZER_S_PER_PARAMETER, Prediction
from engine.job.swap.planned import SwapPlan, planned, predicted_iteration_s
from engine.simulate.spans import Payload, Span, SpanOp


def predict_swap(job: TrainJob) -> Prediction:
    """Return what one global batch takes, where each worker does its share.

    Workers are alike: each computes `accumulation` steps, one after the other. Then the last gradients leave
    the device, all workers sum, each takes the optimizer's step, and the updated first sub-model is loaded.
    The tracker hands out mini-batches in the order of the workers.

    Raises
    ------
    InputError
        The model does not fit the device, however it is cut, or its ops are too short to emulate.
    """
    plan = planned(job)
    step = plan.result.step
    assert step is not None
    sum_s = sum_of_stage_s(job, 0)
    optimizer_s = OPTIMIZER_FLOOR_S + job.model.shape.parameters * OPTIMIZER_S_PER_PARAMETER
    iteration_s = predicted_iteration_s(job, plan, allreduce_s=sum_s, optimizer_s=optimizer_s)
    workers = range(job.cell.pipelines)
    spans = [span for worker in workers for span in _of_worker(job, plan, worker, sum_s, optimizer_s)]
    return Prediction(
        spans=tuple(spans),
        iteration_s=iteration_s,
        makespan_s=job.cell.accumulation * plan.round_s,
        utilization=job.cell.accumulation * step.busy_s / iteration_s,
        allreduce_s=(sum_s,),
        optimizer_s=(optimizer_s,),
    )


def _of_worker(
    job: TrainJob, plan: SwapPlan, worker: int, sum_s: float, optimizer_s: float
) -> Iterator[Span]:
    workers, batches = job.cell.pipelines, job.cell.microbatches
    for number in range(job.cell.accumulation):
        first, begin = (number * workers + worker) * batches, number * plan.round_s
        for span in plan.result.spans():
            unit = None if span.microbatch is None else first + span.microbatch
            yield replace(
                span, pipeline=worker, microbatch=unit, start=span.start + begin, end=span.end + begin
            )
    at = job.cell.accumulation * plan.round_s
    closing: list[tuple[SpanOp, Payload | None, float]] = [
        ("load", "gradient", plan.gradients_out_s),
        ("all_reduce", None, sum_s),
        ("optimizer", None, optimizer_s),
        ("load", None, plan.subs[0].load_s),
    ]
    for op, payload, seconds in closing:
        # The last gradients of a step that sends its own out are among its spans.
        if seconds > 0 and (payload is None or plan.gradients_stay):
            yield Span(
                track="gpu", pipeline=worker, stage=0, op=op, payload=payload, start=at, end=at + seconds
            )
        at += seconds
