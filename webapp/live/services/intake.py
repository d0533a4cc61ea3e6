"""Taking in what nodes report: one batch of events, one transaction."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog
from django.db import transaction
from django.db.models import F

from engine.job.codes import code_of
from engine.job.events.base import BaseEvent, OfRun
from engine.job.events.event import Event
from engine.job.events.gpus import Gpus
from engine.job.events.incidents import Adapted, LayoutChanged, Recovery
from engine.job.events.node import Heartbeat, Probe, Rates, Samples
from engine.job.events.prefill import CoordinatorEvent, Prefill
from engine.job.events.training import (
    Boundary,
    Checkpoint,
    Log,
    Rank,
    Result,
    Spans,
    Step,
    Validation,
    Workers,
)
from engine.job.shape import Shape
from webapp.inventory.selectors import clock_offsets_s
from webapp.inventory.services import record_heartbeat, record_probe, record_rates, record_samples
from webapp.jobs import services as jobs
from webapp.jobs.models import RankState, Run, RunEvent
from webapp.jobs.reserve import in_reserve
from webapp.live import payload, usage
from webapp.live.models import IterationStat, LogLine, SpanBatch
from webapp.live.selectors import predicted, run_usage
from webapp.live.services import coordinators, logs
from webapp.live.services.gpus import record_gpus
from webapp.live.services.possible import require_possible
from webapp.live.services.refusals import Refusals, add_refusal, record_refusals
from webapp.live.shape import shape_of_run, training

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Intake:
    """One batch while it is taken in: what is known of its runs, and what their browsers are to hear."""

    runs: dict[int, Run] = field(default_factory=dict)
    nodes: dict[int, dict[int, str]] = field(default_factory=dict)  # run → rank → the node it was given to
    batches: list[SpanBatch] = field(default_factory=list)
    stats: dict[tuple[int, int], IterationStat] = field(default_factory=dict)
    lines: dict[tuple[int, int], list[LogLine]] = field(default_factory=dict)  # (run, rank) → its new lines
    clocks: dict[str, float] | None = None  # node → seconds by which its clock is ahead; None: not read yet
    touched: set[int] = field(default_factory=set)
    new_epoch: set[int] = field(default_factory=set)
    replanned: set[int] = field(default_factory=set)  # of which something else may be predicted now
    late: int = 0  # events of another generation, or of no run
    refused: Refusals = field(default_factory=dict)


@transaction.atomic
def take_in(events: list[tuple[str, str, Event]], changed: set[int]) -> list[tuple[int, dict[str, Any]]]:
    """Write a batch of events and return the messages for browsers, as (run id, message).

    Parameters
    ----------
    events : (node, stream entry id by our clock, event). At least once: what
        is known by its key changes nothing.
    changed : runs whose state a service has changed since the last batch.
    """
    intake = Intake()
    _load_runs(intake, events, changed)
    _take_spans(intake, events)
    for node, entry, event in events:
        _take_other(intake, node, entry, event)
    _write(intake)
    record_refusals(intake.refused)
    if intake.late:
        log.warning("events of other generations left out", count=intake.late)
    run_pks = intake.touched | (changed & set(intake.runs))
    return [(pk, _message(intake, intake.runs[pk])) for pk in sorted(run_pks)]


def _load_runs(intake: Intake, events: list[tuple[str, str, Event]], changed: set[int]) -> None:
    run_pks = set(changed)
    for _, _, event in events:
        run = _run_id(event)
        if run is not None:
            run_pks.add(run)
    if not run_pks:
        return
    # Locked in one order, so that services that change a run meanwhile wait instead of meeting halfway.
    runs = (
        Run.objects.select_for_update(of=("self",))
        .select_related("job")
        .filter(pk__in=run_pks)
        .order_by("pk")
    )
    intake.runs = {run.pk: run for run in runs.defer("predicted", "result", "job__plan_copy")}
    intake.nodes = {pk: {} for pk in intake.runs}
    ranks = RankState.objects.filter(run__in=intake.runs).values_list("run_id", "rank", "node__name")
    for run_id, rank, node in ranks:
        intake.nodes[run_id][rank] = node


def _run_id(event: BaseEvent) -> int | None:
    digits = (event.run or "") if isinstance(event, OfRun) else ""
    return int(digits) if digits.isdecimal() and len(digits) < 19 else None


def _run_of(intake: Intake, node: str, event: OfRun) -> Run | None:
    """The run that `event` speaks of, where it is of its generation and `node` may say it of that run."""
    run = intake.runs.get(_run_id(event) or 0)
    if run is None or event.generation != run.generation:
        intake.late += 1
        return None
    nodes = intake.nodes[run.pk]
    try:
        require_possible(run, shape_of_run(run.pk), nodes, node, event, ahead_s=_clock_ahead_s(intake, node))
    except ValueError as error:
        _refuse(intake, node, event, error)
        return None
    return run


def _take_spans(intake: Intake, events: list[tuple[str, str, Event]]) -> None:
    """Spans of all ranks at once: what is known already is looked up in one query."""
    spans: dict[tuple[int, int, int], Spans] = {}
    for node, _, event in events:
        if not isinstance(event, Spans):
            continue
        run = _run_of(intake, node, event)
        if run is not None:
            spans.setdefault((run.pk, event.iteration, event.rank), event)
    stored = SpanBatch.objects.filter(
        run__in={key[0] for key in spans}, iteration__in={key[1] for key in spans}
    ).values_list("run_id", "iteration", "rank")
    for key in sorted(spans.keys() - set(stored)):  # the first to come gives the run its epoch
        _take_batch(intake, intake.runs[key[0]], spans[key])


def _take_batch(intake: Intake, run: Run, event: Spans) -> None:
    try:
        node = intake.nodes[run.pk][event.rank]
        ahead = _clock_ahead_s(intake, node)
        start, end = event.start - ahead, event.end - ahead
        if not 0 < start <= end < 1e11:
            raise ValueError(f"start {start}, end {end}")
        epoch = run.epoch if run.epoch is not None else start
        codes = [code_of(span, origin=epoch + ahead) for span in event.spans]
        shape = shape_of_run(run.pk)
        here = training(shape, run, event.iteration)
        busy, sync, traffic = usage.of_batch(codes, here[event.rank])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        _refuse(intake, node, event, error)
        return
    stat = _stat(intake, run, event.iteration)
    if stat.is_compact:
        return  # taken in long ago, and its details forgotten
    if run.epoch is None:
        run.epoch = epoch
        intake.new_epoch.add(run.pk)
    intake.batches.append(
        SpanBatch(
            run=run,
            generation=run.generation,
            rank=event.rank,
            iteration=event.iteration,
            start=start,
            end=end,
            spans=codes,
        )
    )
    _roll_up(stat, event.rank, start, end, busy, sync, traffic)
    if here.keys() <= {int(rank) for rank in stat.busy_s}:
        _close(stat, shape, here)
    intake.touched.add(run.pk)


def _clock_ahead_s(intake: Intake, node: str) -> float:
    """By how much the clock of the node is ahead of the one that all nodes are judged by."""
    if intake.clocks is None:
        intake.clocks = clock_offsets_s({name for nodes in intake.nodes.values() for name in nodes.values()})
    return intake.clocks.get(node, 0.0)


def _roll_up(
    stat: IterationStat,
    rank: int,
    start: float,
    end: float,
    busy: float,
    sync: float,
    traffic: list[Any],
) -> None:
    """Add one rank's share to an iteration; the same share twice changes nothing."""
    stat.start = start if stat.start is None else min(stat.start, start)
    stat.end = end if stat.end is None else max(stat.end, end)
    stat.busy_s[str(rank)] = round(busy, 6)
    stat.sync_s[str(rank)] = round(sync, 6)
    if traffic:
        stat.traffic[str(rank)] = traffic
    stat.ranks = len(stat.busy_s)


def _close(stat: IterationStat, shape: Shape, ranks: Collection[int]) -> None:
    """What is kept of a whole iteration for good."""
    whole = usage.total(
        [stat], dc_of_rank=shape.dc_of_rank, ranks=ranks, pairs=shape.pairs, links=shape.links, predicted=None
    )
    if whole:
        stat.utilization = whole["run"]["utilization"]
        stat.dc_utilization = [dc["utilization"] for dc in whole["dcs"]]
        stat.link_gbps = [link["gbps"] for link in whole["links"]]


def _stat(intake: Intake, run: Run, iteration: int) -> IterationStat:
    key = (run.pk, iteration)
    if key not in intake.stats:
        stat = IterationStat.objects.filter(run=run, iteration=iteration).first()
        intake.stats[key] = stat or IterationStat(run=run, iteration=iteration)
    return intake.stats[key]


def _take_other(intake: Intake, node: str, entry: str, event: BaseEvent) -> None:
    match event:
        case Spans():
            return
        case Heartbeat():
            logs.record_loss(node, event.lost)
            record_heartbeat(node, _entry_time(entry), event)
        case Gpus():
            record_gpus(node, _entry_time(entry), event)
        case Probe():
            record_probe(node, event)
        case Rates():
            record_rates(node, event)
        case Samples():
            record_samples(node, event)
        case CoordinatorEvent() | Prefill():
            _take_coordinator(intake, node, entry, event)
        case OfRun():
            _take_of_run(intake, node, event)


def _take_coordinator(intake: Intake, node: str, entry: str, event: CoordinatorEvent | Prefill) -> None:
    """What a prefill coordinator reports.

    A process next to the ranks, with its own rank number beyond theirs.
    """
    run = _run_of(intake, node, event)
    if run is None:
        return
    try:
        if isinstance(event, CoordinatorEvent):
            coordinators.record_coordinator(run, node, _entry_time(entry), event)
        else:
            coordinators.record_prefill(run, node, _entry_time(entry), event)
    except ValueError as error:
        _refuse(intake, node, event, error)


def _take_of_run(intake: Intake, node: str, event: OfRun) -> None:
    run = _run_of(intake, node, event)
    if run is None:
        return
    try:
        if _taken(intake, run, event):
            intake.touched.add(run.pk)
    except ValueError as error:
        _refuse(intake, node, event, error)


def _refuse(intake: Intake, node: str, event: OfRun, error: Exception) -> None:
    add_refusal(intake.refused, node, f"{type(event).model_fields['kind'].default}: {error}")


def _taken(intake: Intake, run: Run, event: OfRun) -> bool:
    """Take in one event of a run; returns whether its browsers are to hear of it.

    Raises
    ------
    ValueError
        It cannot be true of this run.
    """
    match event:
        case Rank():
            return jobs.record_rank_event(run, event)
        case Step():
            _take_step(intake, run, event)
        case Boundary():
            jobs.record_boundary(run, event.iteration)
        case Checkpoint():
            return jobs.record_checkpoint(run, event)
        case Recovery():
            return _replanned(intake, run, news=jobs.record_recovery(run, event))
        case Adapted():
            return _replanned(intake, run, news=jobs.record_adapted(run, event))
        case LayoutChanged():
            return _replanned(intake, run, news=jobs.record_layout_changed(run, event))
        case Validation():  # of held-out text, after so many steps: it belongs to the last of them
            stat = _stat(intake, run, event.step - 1)
            stat.validation_loss, stat.validation_bits_per_byte = event.loss, event.bits_per_byte
        case Workers():
            return jobs.record_workers(run, event)
        case Log():
            line = logs.line_of(run, event)
            intake.lines.setdefault((run.pk, line.rank), []).append(line)
            return False
        case Result():
            outcome = event.outcome
            jobs.record_result(run, {k: v for k, v in outcome.items() if k not in OF_STEPS})
            return False
        case _:  # whose mini-batches a batch of strategy swap was: the site shows none
            return False
    return True


def _replanned(intake: Intake, run: Run, *, news: bool) -> bool:
    if news:
        intake.replanned.add(run.pk)
    return news


def _take_step(intake: Intake, run: Run, event: Step) -> None:
    stat = _stat(intake, run, event.iteration)
    for name in ("loss", "bits_per_byte", "grad_norm", "learning_rate", "tokens"):
        setattr(stat, name, getattr(event, name))
    jobs.record_progress(run, iteration=event.iteration)


OF_STEPS = ("losses", "bits_per_byte", "grad_norms")  # of a result, which each step's event has said
ROLLED_UP = [
    "start",
    "end",
    "loss",
    "bits_per_byte",
    "validation_loss",
    "validation_bits_per_byte",
    "grad_norm",
    "learning_rate",
    "tokens",
    "ranks",
    "busy_s",
    "sync_s",
    "traffic",
    "utilization",
    "dc_utilization",
    "link_gbps",
]


def _write(intake: Intake) -> None:
    for pk in intake.new_epoch:
        Run.objects.filter(pk=pk, epoch__isnull=True).update(epoch=intake.runs[pk].epoch)
    SpanBatch.objects.bulk_create(intake.batches, ignore_conflicts=True)
    IterationStat.objects.bulk_create(
        intake.stats.values(),
        update_conflicts=True,
        unique_fields=["run", "iteration"],
        update_fields=ROLLED_UP,
    )
    newest = dict(sorted((batch.run_id, batch.iteration) for batch in intake.batches))
    for pk, iteration in newest.items():
        jobs.record_ended_iteration(intake.runs[pk], iteration)
    logs.store(intake.lines)
    for (pk, rank), lines in intake.lines.items():
        jobs.record_last_line(intake.runs[pk], rank, lines[-1].text)


def _told_of() -> Any:
    """Runs without their large documents, which a message does not need."""
    runs = Run.objects.select_related("job").annotate(planned_utilization=F("predicted__utilization"))
    return runs.defer("predicted", "result", "job__document", "job__plan_copy")


def _message(intake: Intake, before: Run) -> dict[str, Any]:
    """What the browsers of a run are to hear of this batch; numbered in its transaction."""
    old_marks = before.marks_told
    Run.objects.filter(pk=before.pk).update(live_seq=F("live_seq") + 1, marks_told=F("mark_seq"))
    run: Any = _told_of().get(pk=before.pk)
    marks = RunEvent.objects.filter(run=run, seq__gt=old_marks).order_by("seq")
    stats = [stat for (pk, _), stat in sorted(intake.stats.items()) if pk == run.pk]
    message = {
        "type": payload.MessageType.EVENTS,
        "seq": run.live_seq,
        "now": payload.now_ms(run, time.time()),
        "run": payload.run_entry(run),
        "iterations": [payload.iteration_entry(run, stat) for stat in stats],
        "spans": [payload.span_entry(batch) for batch in intake.batches if batch.run_id == run.pk],
        "marks": [payload.mark_entry(mark) for mark in marks],
        "ranks": payload.rank_entries(run.ranks.all(), in_reserve(before)),
    }
    if run.pk in intake.replanned:
        message |= predicted(run, (run.iteration,))
    if stats:
        message["usage"] = run_usage(run, shape_of_run(run.pk), run.planned_utilization)
    if run.pk in intake.new_epoch and run.epoch is not None:
        message["epoch"] = run.epoch * 1e3
    return message


def _entry_time(entry: str) -> datetime:
    """When the broker received a stream entry, whose id is of our clock: the one by which nodes are judged.

    A node may give its entry any later id. It must not stand for ever as one that was just heard.
    """
    return datetime.fromtimestamp(min(int(entry.partition("-")[0]) / 1e3, time.time()), UTC)
