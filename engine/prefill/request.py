"""The document of `meridian prefill replay FILE`."""

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.documents import MOST_LINES_BYTES, read_json, read_text
from engine.errors import Infeasible, InputError, reason_of
from engine.inputs import Count, Document, Index, NonNegative, Number, Positive
from engine.model.document import NameOrShape, shape_of
from engine.model.memory import kv_bytes_per_token
from engine.model.presets import PRESETS
from engine.model.transformer import Transformer
from engine.prefill.bubbles import TrainingPattern, joined, of_spans, of_timeline
from engine.prefill.index import Fleet
from engine.prefill.latency import MOST_RESERVE_MS, Hop, LatencyModel, Point, errors, fit
from engine.prefill.placement import Cache, Order, Settings
from engine.prefill.profiles import computed, is_shipped, profile
from engine.schedule.scenario import Scenario
from engine.simulate import Span, simulate

MOST_CELLS = 10_000
MOST_GPUS = 100_000
MOST_REQUESTS = 10_000_000
MOST_QUEUE = 10_000
# Of Llama-3-8B: keys and values of 8 heads of 128 in 32 layers, and a hidden state of 4,096, in fp16.
KV_BYTES_PER_TOKEN = 131_072
ACTIVATION_BYTES_PER_TOKEN = 8_192
FP16_BYTES = 2


class Bubbles(Document):
    """Source of bubbles: a scenario whose time unit lasts `slot_ms`, recorded spans, or the times themselves.

    timeline : a file of spans as JSON lines (seconds, unless slot_ms says otherwise), or the output of
        `meridian simulate --json` (slot_ms needed).
    busy, period_ms : for each pipeline and stage the intervals [begin, end], in ms and in order, in which its
        GPU trains in an iteration of so many ms.
    """

    scenario: Scenario | None = None
    slot_ms: Positive | None = None
    timeline: str | None = None
    busy: Annotated[list[list[list[tuple[NonNegative, NonNegative]]]], Field(min_length=1)] | None = None
    period_ms: Positive | None = None

    @classmethod
    def of(cls, pattern: TrainingPattern) -> "Bubbles":
        """Those of `pattern`."""
        busy = [[list(gpu) for gpu in pipeline] for pipeline in pattern.busy]
        return cls(busy=busy, period_ms=pattern.period_ms)

    @model_validator(mode="after")
    def _one_source(self) -> "Bubbles":
        given = [name for name in ("scenario", "timeline", "busy") if getattr(self, name) is not None]
        if len(given) != 1:
            allowed = "give one of scenario (with slot_ms), timeline, and busy (with period_ms)"
            raise InputError("", " and ".join(given) or None, allowed)
        if self.scenario is not None and self.slot_ms is None:
            raise InputError("slot_ms", None, "required with a scenario: ms of its time unit")
        if (self.busy is None) != (self.period_ms is None):
            raise InputError("period_ms", self.period_ms, "required with busy, and with nothing else")
        self._busy_is_in_order()
        return self

    def _busy_is_in_order(self) -> None:
        busy = self.busy or []
        for i, pipeline in enumerate(busy):
            if not pipeline or len(pipeline) != len(busy[0]):
                allowed = "as many stages as the other pipelines, at least one"
                raise InputError(f"busy[{i}]", len(pipeline), allowed)
            for j, gpu in enumerate(pipeline):
                edges = [0.0, *(edge for interval in gpu for edge in interval), self.period_ms or 0.0]
                if edges != sorted(edges):
                    allowed = "must be intervals in order, apart, and within 0 and period_ms"
                    raise InputError(f"busy[{i}][{j}]", gpu, allowed)

    def pattern(self) -> TrainingPattern | Infeasible:
        """Training times of the GPUs. Raises InputError if the timeline cannot be read."""
        if self.busy is not None:
            rows = tuple(tuple(joined(gpu) for gpu in pipeline) for pipeline in self.busy)
            stages = len(self.busy[0])
            return TrainingPattern(period_ms=self.period_ms or 0.0, busy=rows, dc_of_stage=(0,) * stages)
        if self.scenario is None:
            return self._recorded()
        result = simulate(self.scenario)
        if result.timeline is None:
            return Infeasible(reason=result.reason or "no schedule", stopped_by=result.stopped_by)
        return of_timeline(result.timeline, self.slot_ms or 1.0, self.scenario.dcs)

    def _recorded(self) -> TrainingPattern:
        source = self.timeline or ""
        spans, default_ms = _read_spans(source)
        unit_ms = self.slot_ms or default_ms
        if unit_ms is None:
            raise InputError("bubbles.slot_ms", None, "required with a simulated timeline: ms of its unit")
        try:
            return of_spans(spans, unit_ms)
        except ValueError as error:
            raise InputError("bubbles.timeline", source, str(error)) from None


class ProfileDocument(Document):
    """Prefill times: measured points, the three figures of the model, or those of a model on a GPU.

    model : a name with a shipped profile, which was measured; times of any other model are computed.
    """

    points: list[tuple[Number, Number]] | None = None
    a_ms: NonNegative | None = None
    b_ms: NonNegative | None = None
    c_ms: NonNegative | None = None
    model: NameOrShape | None = None
    gpu: str | None = None
    tensor_parallel: Count = 1

    @model_validator(mode="after")
    def _one_kind(self) -> "ProfileDocument":
        figures = [self.a_ms, self.b_ms, self.c_ms]
        kinds = [self.points is not None, any(f is not None for f in figures), self.model is not None]
        if sum(kinds) != 1:
            raise InputError("", None, "give one of points, {a_ms, b_ms, c_ms} and {model, gpu}")
        for name, figure in zip(("a_ms", "b_ms", "c_ms"), figures, strict=True):
            if kinds[1] and figure is None:
                raise InputError(name, None, "required, but missing")
        if kinds[1] and not (self.b_ms or 0) + (self.c_ms or 0) > 0:
            raise InputError("b_ms", self.b_ms, "must be greater than 0 if c_ms is 0")
        if self.points is not None:
            fit(self.points)
        if self.model is not None:
            if self.gpu is None:
                raise InputError("gpu", None, "required with model, but missing")
            _ = self.measured
        return self

    @cached_property
    def measured(self) -> tuple[Point, ...]:
        """The points that the model is fitted to; empty if its figures are given."""
        if self.points is not None:
            return tuple(self.points)
        if self.model is None or self.gpu is None:
            return ()
        if self.shape is not None:
            return computed(self.shape, self.gpu, self.tensor_parallel)
        assert isinstance(self.model, str)
        return profile(self.model, self.gpu, self.tensor_parallel).points

    @cached_property
    def shape(self) -> Transformer | None:
        """The shape of a model whose times are computed."""
        if self.model is None:
            return None
        if isinstance(self.model, str):
            shipped = is_shipped(self.model, self.gpu or "", self.tensor_parallel)
            if shipped or self.model not in PRESETS:
                return None
        return shape_of(self.model)

    @cached_property
    def latency(self) -> LatencyModel:
        if self.measured:
            return fit(self.measured)
        return LatencyModel(a_ms=self.a_ms or 0.0, b_ms=self.b_ms or 0.0, c_ms=self.c_ms or 0.0)

    @property
    def worst_error(self) -> float | None:
        """Largest relative error of the model on the points of its fit."""
        return max((abs(e) for e in errors(self.latency, self.measured)), default=None)


class ControllerDocument(Document):
    """The controller's settings; see `engine.prefill.controller.Settings`. kv_budget_gb: of one GPU."""

    guard_ms: NonNegative = 1.0
    queue: Annotated[Index, Field(le=MOST_QUEUE)] = 8
    chunk_tokens: Count | None = None
    order: Order = "fifo"
    ttft_slo_ms: Positive | None = None
    kv_budget_gb: Positive | None = None
    reserve_ms: Annotated[NonNegative, Field(le=MOST_RESERVE_MS)] = 0.0

    @property
    def settings(self) -> Settings:
        return Settings(
            guard_ms=self.guard_ms,
            queue=self.queue,
            chunk_tokens=self.chunk_tokens,
            order=self.order,
            ttft_slo_ms=self.ttft_slo_ms or math.inf,
            reserve_ms=self.reserve_ms,
        )


class ReplayRequest(Document):
    """A trace, the training whose bubbles it is to run in, and how. Fields: docs/dev/contracts.md.

    kv_bytes_per_token, activation_bytes_per_token : by default Llama-3-8B's in fp16, or those of the model
        whose times are computed.
    hop_ms, activation_bytes_per_token : cost of handing a chunk to the next stage, outside and on the LAN.
    """

    bubbles: Bubbles
    cells: Annotated[Count, Field(le=MOST_CELLS)] = 1
    phase: Literal["in", "out"] = "in"
    warm_iterations: Index = 2
    profile: ProfileDocument
    pp_degree: Count = 1
    lan_gbps: Positive = 100.0
    kv_bytes_per_token: NonNegative = KV_BYTES_PER_TOKEN
    hop_ms: NonNegative = 0.0
    activation_bytes_per_token: NonNegative = ACTIVATION_BYTES_PER_TOKEN
    trace: str
    load: Positive = 1.0
    requests: Annotated[Count, Field(le=MOST_REQUESTS)] | None = None
    too_long: Literal["drop", "clip"] = "drop"
    controller: ControllerDocument = ControllerDocument()

    @model_validator(mode="after")
    def _cells_are_whole(self) -> "ReplayRequest":
        if self.cells % self.pp_degree:
            allowed = f"must divide cells, {self.cells}: each stage is one GPU of a different cell"
            raise InputError("pp_degree", self.pp_degree, allowed)
        return self

    @property
    def bytes_per_ms(self) -> float:
        return self.lan_gbps * 1e6 / 8

    @property
    def hop(self) -> Hop:
        token_bytes = self.activation_bytes_per_token
        if (shape := self._unless_given("activation_bytes_per_token")) is not None:
            token_bytes = FP16_BYTES * shape.hidden
        return Hop(fixed_ms=self.hop_ms, token_ms=token_bytes / self.bytes_per_ms)

    @property
    def cache(self) -> Cache:
        budget_gb, token_bytes = self.controller.kv_budget_gb, self.kv_bytes_per_token
        if (shape := self._unless_given("kv_bytes_per_token")) is not None:
            token_bytes = kv_bytes_per_token(shape, FP16_BYTES)
        return Cache(
            token_bytes=token_bytes,
            bytes_per_s=self.bytes_per_ms * 1e3,
            budget_bytes=math.inf if budget_gb is None else budget_gb * 1e9,
        )

    def _unless_given(self, field: str) -> Transformer | None:
        """The shape that gives a field its default; None where it is given, or there is none."""
        return None if field in self.model_fields_set else self.profile.shape

    def fleet(self, pattern: TrainingPattern) -> Fleet:
        """The cells of `pattern`. Raises InputError if they have too many GPUs."""
        if self.cells * pattern.gpus > MOST_GPUS:
            allowed = f"{pattern.gpus} GPUs per cell: at most {MOST_GPUS} in total"
            raise InputError("cells", self.cells, allowed)
        shift_ms = pattern.period_ms / self.cells if self.phase == "out" else 0.0
        return Fleet(
            pattern=pattern,
            phase_ms=tuple(cell * shift_ms for cell in range(self.cells)),
            pp_degree=self.pp_degree,
        )


def _read_spans(source: str) -> tuple[list[Span], float | None]:
    """Spans of a file, and the ms of their unit where the kind of file tells."""
    try:
        text = read_text(Path(source))
    except (OSError, ValueError) as error:
        raise InputError("bubbles.timeline", source, f"cannot be read ({reason_of(error)})") from None
    try:
        whole = read_json(text, most_bytes=MOST_LINES_BYTES)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "spans" in whole:
        return list(_spans(enumerate(whole["spans"]))), None
    lines = [line for line in text.splitlines() if line.strip()]
    return list(_spans((i, _json(i, line)) for i, line in enumerate(lines))), 1e3


def _json(i: int, line: str) -> Any:
    try:
        return read_json(line)
    except ValueError:
        raise InputError(f"bubbles.timeline[{i}]", line, "must be a span as a JSON object") from None


def _spans(rows: Any) -> Iterator[Span]:
    for i, row in rows:
        at = f"bubbles.timeline[{i}]"
        try:
            span = Span(**row)
        except TypeError:
            raise InputError(at, row, "must be a span: track, pipeline, stage, op, start, end") from None
        for name in ("start", "end"):
            value = getattr(span, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
                raise InputError(f"{at}.{name}", value, "must be a finite number")
        for name in ("pipeline", "stage"):
            value = getattr(span, name)
            if value is not None and (not isinstance(value, int) or not 0 <= value < MOST_GPUS):
                raise InputError(f"{at}.{name}", value, "must be a whole number of at least 0")
        if span.end < span.start:
            raise InputError(f"{at}.end", span.end, f"must be at least start, {span.start}")
        yield span
