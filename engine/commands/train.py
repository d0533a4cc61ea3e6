"""`meridian train FILE`: run one training job on this machine, one process per GPU."""

import contextlib
import dataclasses
import json
import secrets
import signal
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click

from engine.commands.files import folder, write_json
from engine.commands.model_files import with_model
from engine.commands.printed import show
from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import parse
from engine.job.adapt.sentences import described, moved, smaller_layout
from engine.job.checkpoint.manifest import resumed
from engine.job.checkpoint.place import open_place
from engine.job.checkpoint.resuming import changes, with_kept_rate
from engine.job.events.event import Event
from engine.job.events.incidents import Adapted, LayoutChanged, Recovery
from engine.job.events.training import (
    Checkpoint,
    CheckpointState,
    Rank,
    RankState,
    Result,
    Spans,
    Step,
    Validation,
    Workers,
)
from engine.job.file_access import with_files
from engine.job.flat import NOTICE, converted
from engine.job.job import TrainJob
from engine.job.launch import single_machine
from engine.job.planned import pinned, schedule_of
from engine.job.prefill import settings as prefill_settings
from engine.job.sections.strategy import SWAP
from engine.job.swap.planned import SwapPlan, planned
from engine.run.gpus import check_machine
from engine.run.launcher import RankGroup
from engine.schedule.registry import name_of
from engine.simulate.spans import Span
from engine.simulate.trace import chrome_trace
from engine.train.corpus import corpus_of
from engine.train.metrics import Metrics
from engine.train.trackers import check_trackers

LONGEST_TRACE = 200_000  # spans: the last of a long run
GRACE_S = 3.0


@click.command("train")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write a Chrome/Perfetto trace of the run.")
@click.option("--metrics", type=click.Path(path_type=Path), help="Write a row per step as CSV.")
@click.option("--tensorboard", metavar="DIR", help="Write TensorBoard events into this folder.")
@click.option("--mlflow", metavar="DIR", help="Write an MLflow store (mlflow.db) into this folder.")
@click.option("--wandb", metavar="DIR", help="Write an offline run of Weights & Biases into this folder.")
@click.option("--spans", type=click.Path(path_type=Path), help="Write every span as a line of JSON.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for result.json, trace.json, metrics.csv, spans.jsonl and the ranks' logs (logs/).",
)
def command(
    file: str,
    as_json: bool,
    trace: Path | None,
    metrics: Path | None,
    tensorboard: str | None,
    mlflow: str | None,
    wandb: str | None,
    spans: Path | None,
    out: Path | None,
) -> int:
    """Train a model across data centres that are emulated on this machine.

    FILE (JSON or YAML, - for standard input) is a job: datacenters, links, and the sections cell {stages,
    pipelines, microbatches}, model {layers, hidden, heads, seq}, data, device {kind: cpu, emulated or cuda},
    optimizer {steps, lr}, persistence, failures, tracking, strategy {kind: pipeline or swap, policy} and
    prefill; see docs/training.md. A flat document of an earlier version is read too. Progress goes to stderr.
    Exit status 1 if the run failed.
    """
    document = with_model(load_document(file), "model", "config")
    job = parse(TrainJob, document)
    read = converted(document)
    trackers = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
    options = {name: folder for name, folder in trackers.items() if folder is not None}
    try:
        job = _prepared(_with_absolute_paths(job.with_fields("tracking", **options)))
    except InputError as error:
        section, _, name = error.field.partition(".")
        if section == "tracking" and name in options:
            raise InputError(f"--{name}", options[name], error.allowed) from None
        raise read.named(error) from None
    if out is not None:
        folder(out)
        trace, metrics = trace or out / "trace.json", metrics or out / "metrics.csv"
        spans = spans or out / "spans.jsonl"
    logs = out / "logs" if out is not None else None
    notice = NOTICE if read.is_flat else ""
    watch, unwritten = _trained(job, spans, metrics, trace, logs, notice)
    if watch.failure or watch.result is None:
        click.echo(f"meridian: the run failed: {watch.failure or 'no result came'}", err=True)
        return 1
    result = watch.result
    show(as_json, lambda: result, lambda: lines(job, result))
    if unwritten is not None:
        click.echo(f"meridian: a file of the run is incomplete: {unwritten}", err=True)
        return 1
    if out is not None:
        write_json(watch.result, out / "result.json")
    return 0


def _prepared(job: TrainJob) -> TrainJob:
    """The job with its schedule, once this machine, its text and its checkpoints have been looked at."""
    check_machine(single_machine(job, run="", log_dir=""))
    check_trackers(job.tracking)
    corpus = corpus_of(job)
    if job.swap_strategy:
        _warn_of_stalls(planned(job))
    else:
        job = pinned(job)
        schedule_of(job)
    if job.persistence.checkpoint:
        open_place(job.persistence.checkpoint.dir).prepare()
    checkpoint = resumed(job, corpus.fingerprint()) if job.persistence.resume else None
    if checkpoint:
        for torn in checkpoint.passed_over:
            click.echo(f"passed over: {torn}", err=True)
        click.echo(f"resumes after step {checkpoint.manifest.step} from {checkpoint.where}", err=True)
        for change in changes(with_kept_rate(job, corpus.fingerprint), checkpoint):
            click.echo(f"changed: {change}", err=True)
    return job


def _trained(
    job: TrainJob,
    spans: Path | None,
    metrics: Path | None,
    trace: Path | None,
    logs: Path | None,
    notice: str,
) -> tuple["_Watch", OSError | str | None]:
    """What the run said, and why a file of it is not whole: a full disk must not cost the result of hours."""
    watch: _Watch | None = None
    try:
        with contextlib.ExitStack() as stack:
            span_file = stack.enter_context(_writable(spans, "--spans")) if spans else None
            metrics_file = stack.enter_context(_writable(metrics, "--metrics")) if metrics else None
            trace_file = stack.enter_context(_writable(trace, "--trace")) if trace else None
            log_dir = str(logs) if logs else stack.enter_context(_scratch_folder())
            rows = stack.enter_context(contextlib.closing(Metrics(metrics_file))) if metrics_file else None
            watch = _Watch(job, span_file, rows, keep_spans=trace_file is not None)
            if notice:
                click.echo(f"meridian: {notice}", err=True)
            _run(job, watch, log_dir)
            if trace_file:
                json.dump(chrome_trace(watch.spans, "s"), trace_file)
    except OSError as error:
        if watch is None or watch.result is None:
            raise
        return watch, error
    return watch, (watch.result or {}).get("tracking", {}).get("failure")


def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="meridian-train-")


def _warn_of_stalls(plan: SwapPlan) -> None:
    if plan.result.reason:
        click.echo(f"the device will wait for loads: {plan.result.reason}", err=True)


def _with_absolute_paths(job: TrainJob) -> TrainJob:
    """The job with its paths as every process sees them, whatever folder it runs in; URLs stay."""
    job = with_files(job, _absolute)
    if job.prefill is not None:
        prefill_settings.check_checkpoint(Path(job.prefill.checkpoint))
    return job


def _absolute(field: str, path: str) -> str:
    try:
        return path if "://" in path else str(Path(path).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:  # too long, a user that is none, NUL
        raise InputError(field, path[:200], f"must be a path: {error}") from None


def _run(job: TrainJob, watch: "_Watch", log_dir: str) -> None:
    group = RankGroup(single_machine(job, run=secrets.token_hex(4), log_dir=log_dir), watch.on_event)
    # A terminal that closes or a supervisor that ends us means the same as Ctrl-C.
    main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main_thread else None
    try:
        group.start()
        group.wait()
    finally:
        group.stop(GRACE_S)
        if main_thread:
            signal.signal(signal.SIGTERM, before)


class _Watch:
    """What a run says, as it says it."""

    def __init__(
        self, job: TrainJob, span_file: IO[str] | None, metrics: Metrics | None, *, keep_spans: bool
    ) -> None:
        self.result: dict[str, Any] | None = None
        self.failure: str | None = None
        self.spans: deque[Span] = deque(maxlen=LONGEST_TRACE if keep_spans else 0)
        self._job, self._span_file, self._stores_spans = job, span_file, keep_spans
        self._gpus = _gpus(job)
        self._metrics = metrics
        self._ready = 0
        self._last_step: float | None = None

    def on_event(self, event: Event) -> None:
        """Take note of one event."""
        match event:
            case Rank():
                self._on_rank(event)
            case Workers():
                self._on_workers(event)
            case Step():
                self._on_step(event)
            case Recovery():
                self._on_recovery(event)
            case Adapted():
                click.echo(described(event), err=True)
            case LayoutChanged():
                click.echo(moved(event), err=True)
            case Validation():
                self._on_validation(event)
            case Checkpoint():
                self._on_checkpoint(event)
            case Spans():
                self._on_spans(event)
            case Result():
                self.result = event.outcome

    def _on_rank(self, event: Rank) -> None:
        if event.state is RankState.READY:
            self._ready += 1
            if self._ready == self._job.cell.world_size:
                click.echo(f"{self._ready} ranks are ready", err=True)
        if event.state is RankState.FAILED and self.failure is None:
            self.failure = f"rank {event.rank}: {event.detail}"
        if event.state is RankState.LEFT:
            what = "is lost" if self._job.swap_strategy else "has left the run"
            click.echo(f"worker {event.rank} {what}: {event.detail}", err=True)

    def _on_workers(self, event: Workers) -> None:
        changed = {"joined": event.joined, "left": event.left, "lost": event.lost}
        who = [f"{name} {', '.join(map(str, ranks))}" for name, ranks in changed.items() if ranks]
        now = ", ".join(map(str, event.workers))
        click.echo(f"after {event.step} steps: {'; '.join(who)}; workers are {now}", err=True)

    def _on_step(self, event: Step) -> None:
        if self._metrics:
            self._metrics.step(event)
        took = "" if self._last_step is None else f"  {1e3 * (event.t - self._last_step):8.1f} ms"
        self._last_step = event.t
        steps = self._job.optimizer.steps
        click.echo(f"iteration {event.iteration + 1}/{steps}  loss {_loss(event.loss)}{took}", err=True)

    def _on_recovery(self, event: Recovery) -> None:
        goes_on = f"continues with iteration {event.iteration + 1} from {event.source}"
        click.echo(f"recovered: {event.detail}; {goes_on}, {event.lost_s:.1f} s lost", err=True)
        if event.layout is not None:
            click.echo(smaller_layout(event.layout), err=True)

    def _on_validation(self, event: Validation) -> None:
        if self._metrics:
            self._metrics.validation(event)
        click.echo(f"validation after step {event.step}: loss {_loss(event.loss)}", err=True)

    def _on_checkpoint(self, event: Checkpoint) -> None:
        if event.state is CheckpointState.SAVED:
            note = f"; {event.detail}" if event.detail else ""
            click.echo(f"checkpoint after step {event.step}: {event.where}{note}", err=True)
        else:
            click.echo(f"no checkpoint after step {event.step}: {event.detail}", err=True)

    def _on_spans(self, event: Spans) -> None:
        if not self._span_file and not self._stores_spans:
            return
        gpu = self._gpus[event.rank]
        for plain in event.spans:
            span = dataclasses.replace(plain, run=event.run, iteration=event.iteration, gpu=gpu)
            if self._span_file:
                self._span_file.write(json.dumps(span.as_dict()) + "\n")
            if self._stores_spans:
                self.spans.append(span)


def _gpus(job: TrainJob) -> dict[int, str]:
    """By rank, the name of its GPU: where it is, and what it computes at launch."""
    spec = single_machine(job, run="", log_dir="")
    names = {a.rank: f"{a.dc_name}/p{a.pipeline}s{a.stage}" for a in spec.ranks}
    return names | {a.rank: f"{a.dc_name}/reserve-{a.rank}" for a in spec.reserve}


def _loss(loss: float | None) -> str:
    """A loss that is not finite is null in its event."""
    return "not finite" if loss is None else f"{loss:.4f}"


def _writable(path: Path, option: str) -> IO[str]:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(option, str(path), f"cannot be written ({error.strerror})") from None


def lines(job: TrainJob, result: dict[str, Any]) -> Iterator[str]:
    """The readable answer, line by line."""
    iteration, use = result["iteration_ms"], result["utilization"]
    policy = SWAP if job.swap_strategy else name_of(job.pipeline_strategy.policy)
    where = f"{policy} on {job.cell.world_size} GPUs ({job.device.kind})"
    yield f"{where}, {result['steps']} steps, loss {_span(result['losses'])}"
    bits = result["bits_per_byte"]
    if bits and None not in (bits[0], bits[-1]):
        yield f"             {_span(bits)} bits per byte of the text"
    yield (
        f"iteration    {_ms(iteration['median'])} median, {_ms(iteration['p95'])} p95, "
        f"{_ms(iteration['simulated'])} simulated"
    )
    if result["deviation"] is not None:
        yield f"deviation    {result['deviation']:+.1%}"
    yield f"utilization  {_share(use['measured'])} measured, {_share(use['simulated'])} simulated"
    kinds = "".join(f" ({', '.join(dict.fromkeys(kinds))})" for kinds in [result.get("all_reduce")] if kinds)
    yield f"all-reduce   {_ms(result['allreduce_ms'])}{kinds}, optimizer {_ms(result['optimizer_ms'])}"
    yield f"started in   {result['startup_s']:.1f} s, largest rank {result['peak_rss_mb']:.0f} MB"
    hops = Counter(hop["backend"] for hop in result.get("hops", ()))
    if hops:
        counts = (f"{backend} ({count} hop{'s' * (count > 1)})" for backend, count in hops.items())
        yield f"messages     {', '.join(counts)}"
    yield from map(_wan_line, result["wan"])
    if "swap" in result:
        yield from _swap_lines(result["swap"])
    yield f"parameters   sha256 {result['params_sha256']}"


def _wan_line(way: dict[str, Any]) -> str:
    what = "gradients of replicas, " if way["from_stage"] == way["to_stage"] else ""
    rate = "" if way["gbps"] is None else f" at {way['gbps']:.2f} Gbps"
    far = "" if way["latency_ms"] is None else f"{way['latency_ms']:.1f} ms one way, "
    cost = "" if way["egress_cost"] is None else f", ${way['egress_cost']:,.4f}"
    return (
        f"WAN          {way['from']} → {way['to']}: {what}{way['bytes'] / 1e6:,.1f} MB{rate}, "
        f"{far}{way['connections']} connections per pair, {way['egress_bytes'] / 1e6:,.1f} MB left{cost}"
    )


def _swap_lines(swap: dict[str, Any]) -> Iterator[str]:
    step, use = swap["step_ms"], swap["step_utilization"]
    yield (
        f"sub-models   {len(swap['sub_models'])}, {swap['loads_per_step']} loads per step, at most on the "
        "device "
        f"{swap['peak_device_bytes'] / 1e6:,.1f} of {swap['device_bytes'] / 1e6:,.1f} MB"
    )
    yield f"swap step    {_ms(step['median'])} median, {_ms(step['planned'])} planned"
    yield f"             {_share(use['measured'])} of it computing, {_share(use['planned'])} planned"
    if swap["redone"]:
        yield f"repeated     {swap['redone']} microbatches of lost workers"


def _span(values: list[float]) -> str:
    return f"{values[0]:.4f} → {values[-1]:.4f}" if values else "–"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
