"""What a node may say of a run: of its own ranks alone, and only what the job makes possible.

A node can send anything. What is refused here changes nothing, so it cannot hurt what other nodes said. A
kind of event that has no rule here is refused.
"""

from collections.abc import Mapping
from datetime import timedelta

from django.utils import timezone

from engine.inputs import parse
from engine.job.events.base import BaseEvent, OfRank, OfRun
from engine.job.events.incidents import Adapted, LayoutChanged, NewLayout, Recovery
from engine.job.events.prefill import CoordinatorEvent, Prefill
from engine.job.events.training import (
    Batch,
    Boundary,
    Checkpoint,
    CheckpointState,
    Log,
    Rank,
    Result,
    Spans,
    Step,
    Validation,
    Workers,
)
from engine.job.job import TrainJob
from engine.job.shape import Shape
from engine.simulate.spans import Span
from webapp.jobs.models import Run, RunCheckpoint, RunEvent

# Clocks jump, and agents keep what they have to say while the broker is away.
EARLY, LATE = timedelta(days=1), timedelta(days=1)
TIMES = {"t", "start", "end", "noticed"}
FIGURES = {"loss", "bits_per_byte", "grad_norm", "learning_rate"}
MOST_FIGURE = 1e100  # sums of what is less are finite
MOST_TEXT = 64 * 1024  # characters of an event whose size does not grow with the job
MOST_OF_JOB = 2 << 20  # characters of a document of a job, or of a schedule
MOST_OF_STEP = 256  # characters of what a result says of a step
MOST_SPANS = 20_000  # beside the ops and transfers of the job: prefill, sums over pipelines, saving
MOST_CHUNKS = 64  # of a schedule
MOST_PARTS = 20_000  # chunks of a stage, or sub-models of a worker that swaps: a layer each at most
MOST_BYTES = 1 << 50
MOST_INCIDENTS = 10_000  # marks of a run that nodes ask for
MOST_CHECKPOINTS = 10_000  # rows of a run
# What the first rank reports for all of them. It is in every layout of a run.
FOR_ALL = (Step, Validation, Boundary, Checkpoint, Recovery, Adapted, LayoutChanged, Result, Batch, Workers)


def require_possible(
    run: Run, shape: Shape, nodes: Mapping[int, str], node: str, event: OfRun, *, ahead_s: float
) -> None:
    """Refuse what `node` cannot know of `run`, or what cannot be true of it.

    Parameters
    ----------
    nodes : the node of each of its ranks.
    ahead_s : seconds by which the clock of `node` is ahead.

    Raises
    ------
    ValueError
        With the reason, for an operator.
    """
    _require_own(run, nodes, node, event)
    if not isinstance(event, Rank):  # its time is not used: the site's is
        _require_near_now(run, event, ahead_s)
    for name in type(event).model_fields.keys() & FIGURES:
        value = getattr(event, name)
        _require(value is None or abs(value) < MOST_FIGURE, f"{name} of {value}")
    _require_of_job(run, shape, nodes, event)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _require_own(run: Run, nodes: Mapping[int, str], node: str, event: OfRun) -> None:
    _require(node in nodes.values(), "it has no rank of that run")
    if isinstance(event, OfRank):
        _require(nodes.get(event.rank) == node, f"rank {event.rank} is not one of its own")
    # Of workers that swap, the machine of the tracker speaks, and that may be any of them.
    if isinstance(event, FOR_ALL) and not run.job.swaps:
        _require(nodes[min(nodes)] == node, "only the node of the first rank says that")


def _require_near_now(run: Run, event: BaseEvent, ahead_s: float) -> None:
    earliest, latest = (run.created_at - EARLY).timestamp(), (timezone.now() + LATE).timestamp()
    for name in type(event).model_fields.keys() & TIMES:
        value = getattr(event, name)
        near = value is None or earliest <= value - ahead_s <= latest
        _require(near, f"{name} is more than a day before the run or after now")


def _require_of_job(run: Run, shape: Shape, nodes: Mapping[int, str], event: OfRun) -> None:
    match event:
        case Spans():
            _require_spans(run, shape, len(nodes), event)
        case Log():
            pass  # of any length: a line is cut
        case Result():
            _require_short(event, MOST_OF_JOB + MOST_OF_STEP * run.steps)
        case Recovery():
            _require_recovery(run, shape, nodes, event)
        case Adapted():
            _require_adapted(run, len(nodes), event)
        case LayoutChanged():
            _require_recovery(run, shape, nodes, event)
            _require_deviations(len(nodes), event)
        case Step() | Boundary():
            _require(event.iteration < run.steps, f"iteration {event.iteration} of {run.steps}")
        case Validation():
            _require(event.step <= run.steps, f"{event.step} steps of {run.steps}")
        case Checkpoint():
            _require_checkpoint(run, event)
        case Workers():
            named = (*event.workers, *(event.joined or ()), *(event.left or ()), *(event.lost or ()))
            _require(run.job.swaps and set(named) <= nodes.keys(), "workers that the run does not have")
            _require(event.step <= run.steps, f"{event.step} steps of {run.steps}")
        case Rank() | Batch():
            _require_short(event, MOST_TEXT)
        case CoordinatorEvent():
            _require(event.rank > max(nodes), f"a coordinator with the number of rank {event.rank}")
            _require_short(event, MOST_TEXT)
        case Prefill():
            _require(event.window_s <= LATE.total_seconds(), f"a window of {event.window_s} s")
            _require(event.gpus <= len(nodes), f"{event.gpus} GPUs")
        case _:
            raise ValueError(f"nothing is known of {type(event).__name__}")


def _require_short(event: BaseEvent, most: int) -> None:
    size = len(event.to_json())
    _require(size <= most, f"{size:,} characters")


def _require_spans(run: Run, shape: Shape, ranks: int, event: Spans) -> None:
    _require(event.iteration < run.steps, f"iteration {event.iteration} of {run.steps}")
    _require(event.start <= event.end, "its end is before its start")
    cell = run.job.document["cell"]
    # On fewer nodes a pipeline computes microbatches of those that are gone.
    microbatches = cell["microbatches"] * cell.get("accumulation", 1) * shape.pipelines
    most = 8 * microbatches * MOST_CHUNKS + MOST_SPANS
    _require(len(event.spans) <= most, f"{len(event.spans):,} spans in one iteration")
    first, last = event.start - EARLY.total_seconds(), event.end + LATE.total_seconds()
    for span in event.spans:
        if not _is_possible(span, first, last, microbatches, ranks):
            raise ValueError("a span that is not of the job, or not of its iteration")


def _is_possible(span: Span, first: float, last: float, microbatches: int, ranks: int) -> bool:
    """Whether a span is within an iteration. A smaller layout has no more stages than there are ranks."""
    return (
        first <= span.start <= span.end <= last
        and (span.arrives is None or first <= span.arrives <= last)
        and (span.microbatch is None or 0 <= span.microbatch < microbatches)
        and 0 <= span.chunk < MOST_PARTS
        and (span.from_stage is None or 0 <= span.from_stage < ranks)
        and (span.to_stage is None or 0 <= span.to_stage < ranks)
        and (span.bytes is None or 0 <= span.bytes <= MOST_BYTES)
    )


def _require_checkpoint(run: Run, event: Checkpoint) -> None:
    _require_short(event, MOST_TEXT)
    if event.state is CheckpointState.TORN:  # one of an earlier run, which may have had more steps
        _require_few_incidents(run)
        return
    _require(event.step <= run.steps, f"{event.step} steps of {run.steps}")
    _require(event.bytes is None or event.bytes <= MOST_BYTES, "a checkpoint of that many bytes")
    _require(RunCheckpoint.objects.filter(run=run).count() < MOST_CHECKPOINTS, "too many checkpoints")


def _require_few_incidents(run: Run) -> None:
    _require(RunEvent.objects.filter(run=run).count() < MOST_INCIDENTS, "too many incidents")


def _require_adapted(run: Run, ranks: int, event: Adapted) -> None:
    _require(event.iteration <= run.steps, f"iteration {event.iteration} of {run.steps}")
    _require_deviations(ranks, event)
    _require_short(event, MOST_OF_JOB)
    _require_few_incidents(run)


def _require_deviations(ranks: int, event: Adapted | LayoutChanged) -> None:
    stages = [stage for deviation in event.deviations for stage in deviation.at]
    _require(all(stage < ranks for stage in stages), "stages that the run does not have")


def _require_recovery(
    run: Run, shape: Shape, nodes: Mapping[int, str], event: Recovery | LayoutChanged
) -> None:
    _require(event.iteration <= run.steps, f"iteration {event.iteration} of {run.steps}")
    _require(set(event.left or ()) <= nodes.keys(), "ranks that the run does not have")
    if event.layout is not None:
        _require_layout(shape, nodes, event.layout)
    _require_short(event, MOST_OF_JOB)
    _require_few_incidents(run)


def _require_layout(shape: Shape, nodes: Mapping[int, str], layout: NewLayout) -> None:
    ranks = {int(rank) for rank in (*layout.dcs_of_rank, *(layout.position_of_rank or {}))}
    _require(bool(layout.dcs_of_rank) and ranks <= nodes.keys(), "a layout of other ranks")
    dcs = [dc for dcs in layout.dcs_of_rank.values() for dc in dcs]
    _require(all(dc < len(shape.dcs) for dc in dcs), "data centres that the run does not have")
    sizes = [(cut.stages, cut.pipelines) for cut in (layout, layout.before)]
    if layout.job is not None:  # it is simulated
        cell = parse(TrainJob, layout.job).cell
        sizes.append((cell.stages, cell.pipelines))
    _require(all(a * b <= len(nodes) for a, b in sizes), "a layout of more GPUs than the run has")
