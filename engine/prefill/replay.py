"""Replays a request trace against the bubbles of training, for `meridian prefill replay`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import Infeasible
from engine.prefill.bubbles import TrainingPattern
from engine.prefill.controller import Controller
from engine.prefill.index import Fleet
from engine.prefill.kernels.gaps import EPS
from engine.prefill.kernels.place import BEGIN, END, GPU, TOKENS
from engine.prefill.placement import Placement, PlacementQuery, Refusal
from engine.prefill.request import ReplayRequest
from engine.prefill.trace import Trace, read_trace

Floats = NDArray[np.float64]
REASONS = ("no_bubble", "too_long", "queue_full", "kv_space", "ttft")
# Intervals that are added up together.
BATCH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Quantiles of a figure; None if it has no values."""

    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, values: Floats) -> "Quantiles":
        if not len(values):
            return cls(p50=None, p95=None, p99=None, max=None)
        p50, p95, p99 = (float(q) for q in np.quantile(values, (0.5, 0.95, 0.99)))
        return cls(p50=p50, p95=p95, p99=p99, max=float(values.max()))

    def as_dict(self) -> dict[str, float | None]:
        return {"p50": self.p50, "p95": self.p95, "p99": self.p99, "max": self.max}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a replay; fields as docs/dev/contracts.md names them.

    window_start_ms, window_ms : the window of utilization and offered share: whole iterations.
    training_slowdown : training time that prefill overlapped, on the GPU with most, over the window.
    """

    request: ReplayRequest
    gpus: int
    iteration_ms: float
    requests: int
    refused: dict[str, int]
    offered_share: float | None
    window_start_ms: float
    window_ms: float
    utilization_before: float
    utilization_after: float
    queue_ms: Quantiles
    ttft_ms: Quantiles
    ttft_missed: int
    search_us: Quantiles
    training_slowdown: float
    prompt_tokens: int

    @property
    def accepted(self) -> int:
        return self.requests - sum(self.refused.values())

    def as_dict(self) -> dict[str, Any]:
        """The output of `meridian prefill replay`."""
        latency = self.request.profile.latency
        search = self.search_us.as_dict()
        del search["p95"]
        return {
            "feasible": True,
            "requests": self.requests,
            "accepted": self.accepted,
            "refused": self.refused,
            "load": self.request.load,
            "offered_share": self.offered_share,
            "window_start_ms": self.window_start_ms,
            "window_ms": self.window_ms,
            "utilization_before": self.utilization_before,
            "utilization_after": self.utilization_after,
            "queue_ms": self.queue_ms.as_dict(),
            "ttft_ms": self.ttft_ms.as_dict(),
            "ttft_missed": self.ttft_missed,
            "search_us": search,
            "training_slowdown": self.training_slowdown,
            "gpus": self.gpus,
            "iteration_ms": self.iteration_ms,
            "prompt_tokens": self.prompt_tokens,
            "profile": {
                "a_ms": latency.a_ms,
                "b_ms": latency.b_ms,
                "c_ms": latency.c_ms,
                "worst_error": self.request.profile.worst_error,
            },
        }


def replay(
    request: ReplayRequest,
    sink: Callable[[dict[str, Any]], None] | None = None,
    trace: Trace | None = None,
) -> ReplayResult | Infeasible:
    """Offers every request of the trace to a controller at its arrival.

    Parameters
    ----------
    sink : called with each accepted request, as a line of ``--placements`` (docs/dev/contracts.md), once its
        first interval has begun (until then its placement may change), so memory is bounded.
    trace : offered instead of the request's own.

    Raises
    ------
    InputError
        The trace or timeline cannot be read, or the fleet is too large.
    """
    trace = (trace or read_trace(request.trace)).first(request.requests, request.load)
    pattern = request.bubbles.pattern()
    if isinstance(pattern, Infeasible):
        return pattern
    fleet = request.fleet(pattern)
    controller = Controller(
        fleet,
        request.profile.latency,
        settings=request.controller.settings,
        hop=request.hop,
        cache=request.cache,
    )
    window = _window(trace, pattern.period_ms, request.warm_iterations)
    tally = _Tally(fleet, window, len(trace), sink)
    for i in range(len(trace)):
        arrival_ms, tokens = float(trace.arrival_ms[i]), int(trace.tokens[i])
        for placement in controller.advance(arrival_ms):
            tally.begun(placement)
        if request.too_long == "clip":
            tokens = max(1, min(tokens, controller.longest_tokens))
        tally.offered(arrival_ms, request.profile.latency.ms(tokens))
        answer = controller.offer(PlacementQuery(id=i, tokens=tokens, arrival_ms=arrival_ms))
        if isinstance(answer, Refusal):
            tally.refused[answer.reason] += 1
    for placement in controller.advance(math.inf):
        tally.begun(placement)
    return tally.result(request, pattern, controller)


def _window(trace: Trace, period_ms: float, warm_iterations: int) -> tuple[float, float]:
    """Whole iterations from the end of the warm-up to the last arrival; a short trace counts from 0."""
    last = math.floor(trace.arrival_ms[-1] / period_ms)
    first = warm_iterations if last > warm_iterations else 0
    return first * period_ms, max(last, first + 1) * period_ms


class _Tally:
    """Adds up a replay. Intervals are checked against the pattern itself, not the controller's gaps."""

    def __init__(
        self,
        fleet: Fleet,
        window: tuple[float, float],
        requests: int,
        sink: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self.fleet, self.window, self.sink = fleet, window, sink
        self.refused = dict.fromkeys(REASONS, 0)
        self.requests = requests
        self.late = self.tokens = self.seen = 0
        self.queue_ms, self.ttft_ms = np.zeros(requests), np.zeros(requests)
        self.offered_ms = self.prefill_ms = 0.0
        self.across_ms = np.zeros(fleet.gpus)
        self.busy = _BusyTime(fleet)
        self._rows: list[Floats] = []
        self._held = 0

    def offered(self, arrival_ms: float, prefill_ms: float) -> None:
        if self.window[0] <= arrival_ms < self.window[1]:
            self.offered_ms += prefill_ms

    def begun(self, placement: Placement) -> None:
        self.queue_ms[self.seen], self.ttft_ms[self.seen] = placement.queue_ms, placement.ttft_ms
        self.seen += 1
        self.late += placement.late
        self.tokens += placement.request.tokens
        self._rows.append(placement.rows)
        self._held += len(placement.rows)
        if self._held >= BATCH:
            self._add()
        if self.sink is not None:
            self.sink(as_line(placement, self.fleet))

    def _add(self) -> None:
        if not self._rows:
            return
        rows = np.concatenate(self._rows)
        self._rows, self._held = [], 0
        first, last = self.window
        inside = np.minimum(rows[:, END], last) - np.maximum(rows[:, BEGIN], first)
        self.prefill_ms += float(np.maximum(inside, 0).sum())
        gpu = rows[:, GPU].astype(np.int64)
        np.add.at(self.across_ms, gpu, self.busy.between(gpu, rows[:, BEGIN], rows[:, END]))

    def result(
        self, request: ReplayRequest, pattern: TrainingPattern, controller: Controller
    ) -> ReplayResult:
        self._add()
        first, last = self.window
        window_ms, gpus = last - first, self.fleet.gpus
        every = np.arange(gpus)
        trained_ms = float(self.busy.between(every, np.full(gpus, first), np.full(gpus, last)).sum())
        idle_ms = gpus * window_ms - trained_ms
        return ReplayResult(
            request=request,
            gpus=gpus,
            iteration_ms=pattern.period_ms,
            requests=self.requests,
            refused=self.refused,
            offered_share=self.offered_ms / idle_ms if idle_ms > 0 else None,
            window_start_ms=first,
            window_ms=window_ms,
            utilization_before=pattern.utilization,
            utilization_after=(trained_ms + self.prefill_ms) / (gpus * window_ms),
            queue_ms=Quantiles.of(self.queue_ms[: self.seen]),
            ttft_ms=Quantiles.of(self.ttft_ms[: self.seen]),
            ttft_missed=self.late,
            search_us=Quantiles.of(np.array(controller.search_ns, dtype=np.float64) / 1e3),
            training_slowdown=float(self.across_ms.max()) / window_ms,
            prompt_tokens=self.tokens,
        )


class _BusyTime:
    """Training time of each GPU between two instants."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.edges: list[tuple[Floats, Floats]] = []
        for row in fleet.pattern.busy:
            for intervals in row:
                edges = np.array([0.0, *(edge for interval in intervals for edge in interval)])
                steps = np.diff(edges, append=fleet.pattern.period_ms)
                steps[::2] = 0.0  # idle between them
                self.edges.append(
                    (np.append(edges, fleet.pattern.period_ms), np.concatenate([[0.0], np.cumsum(steps)]))
                )

    def between(self, gpu: NDArray[np.int64], begin: Floats, end: Floats) -> Floats:
        """For each interval, the time in which its GPU trains by the pattern."""
        training_ms = self._until(gpu, end) - self._until(gpu, begin)
        return np.where(training_ms > EPS, training_ms, 0.0)  # less is rounding, as times reach hours

    def _until(self, gpu: NDArray[np.int64], at: Floats) -> Floats:
        period_ms, ranks = self.fleet.pattern.period_ms, self.fleet.pattern.gpus
        phase = np.asarray(self.fleet.phase_ms)[gpu // ranks]
        laps, inside = np.divmod(at - phase, period_ms)
        training_ms = np.zeros_like(at)
        for rank in np.unique(gpu % ranks).tolist():
            here = gpu % ranks == rank
            edges, until = self.edges[rank]
            training_ms[here] = laps[here] * until[-1] + np.interp(inside[here], edges, until)
        return training_ms


def as_line(placement: Placement, fleet: Fleet) -> dict[str, Any]:
    """An accepted request as docs/dev/contracts.md writes it."""
    intervals = []
    for row in placement.rows:
        cell, pipeline, stage = fleet.location(int(row[GPU]))
        intervals.append(
            {
                "cell": cell,
                "pipeline": pipeline,
                "stage": stage,
                "start_ms": float(row[BEGIN]),
                "end_ms": float(row[END]),
                "tokens": int(row[TOKENS]),
            }
        )
    return {
        "request": placement.request.id,
        "tokens": placement.request.tokens,
        "arrival_ms": placement.request.arrival_ms,
        "start_ms": placement.start_ms,
        "end_ms": placement.end_ms,
        "kv_done_ms": placement.kv_done_ms,
        "intervals": intervals,
    }
