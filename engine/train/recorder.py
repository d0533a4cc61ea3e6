"""Records a rank's work: spans per iteration as events, and bounded statistics for the result."""

import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from engine.job.event_writer import EventWriter
from engine.job.events.training import Spans
from engine.job.launch import RankAssignment
from engine.simulate.spans import Payload, Span, SpanOp, Track
from engine.train.background import Background
from engine.train.exchange import Sent

WARM_UP = 2  # iterations left out of the statistics
LONGEST_WINDOW = 10_000  # iterations over which medians are taken
LATEST_OPS = 200  # of a kind, over which medians are taken: a rank that runs for weeks stays small


class Clock:
    """Unix seconds that never jump: the monotonic clock, set by the wall clock once."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def unix(self, monotonic: float) -> float:
        """Unix time of a reading of time.monotonic(), to the microsecond."""
        return round(monotonic + self._offset, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class HopDirection:
    """One direction of one hop, as the spans of its transfers name it."""

    track: Track
    from_stage: int
    to_stage: int
    payload: Payload
    chunk: int  # of the op that makes what is sent
    nbytes: int


@dataclass(slots=True, kw_only=True)
class _Iteration:
    number: int
    start: float | None = None  # of the first op
    end: float = 0.0
    spans: list[Span] = field(default_factory=list)
    missing: int = 1  # transfers under way, and one for the iteration itself

    @property
    def begin(self) -> float:
        """Of the first op; the end, where there was none."""
        return self.end if self.start is None else self.start


_UnderWay = tuple[_Iteration, HopDirection, int, Sent]  # a message of a microbatch


@dataclass(slots=True)
class _Traffic:
    nbytes: int = 0
    seconds: float = 0.0


class Recorder:
    """Collects the spans of one rank.

    Parameters
    ----------
    die : called with what a transfer raised in the background.
    report : called with an iteration and its spans once all of them are there.
    """

    def __init__(
        self,
        me: RankAssignment,
        writer: EventWriter,
        die: Callable[[BaseException], None],
        report: Callable[[int, Sequence[Span]], None] | None = None,
    ) -> None:
        self.clock = Clock()
        self._me, self._writer, self._die, self._report = me, writer, die, report
        self._lock = threading.Lock()
        # One per track: a LAN message must not wait for a WAN message to learn that it has ended.
        self._reapers: dict[Track, Background[_UnderWay]] = {}
        self._now: _Iteration | None = None
        self._warm_from: int | None = None
        self._ops: dict[tuple[str, int], deque[float]] = {}  # by kind and chunk
        self._traffic: dict[HopDirection, _Traffic] = {}
        self._iterations: deque[float] = deque(maxlen=LONGEST_WINDOW)
        self._ended: float | None = None
        self._last: int | None = None  # iteration that ended
        self._busy_s = 0.0
        self._window_s = 0.0
        self.overruns = 0
        self.worst_overrun_s = 0.0

    def begin(self, number: int) -> None:
        """Open the record of an iteration; a run that resumes begins with a later one than 0."""
        if self._warm_from is None:
            self._warm_from = number + WARM_UP
        self._now = _Iteration(number=number)

    def op(
        self,
        op: SpanOp,
        microbatch: int | None,
        start: float,
        end: float,
        *,
        chunk: int = 0,
        payload: Payload | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Note an op of this GPU, or a load onto it during its ops; times of time.monotonic()."""
        record = self._now
        assert record is not None
        if record.start is None:
            record.start = start
        unix = self.clock.unix
        me = self._me
        span = Span(
            track="gpu",
            pipeline=me.pipeline,
            stage=me.stage,
            op=op,
            microbatch=microbatch,
            chunk=chunk,
            start=unix(start),
            end=unix(end),
            payload=payload,
            bytes=nbytes,
        )
        with self._lock:
            record.spans.append(span)
        if self._is_warm(record):
            self._ops.setdefault((op, chunk), deque(maxlen=LATEST_OPS)).append(end - start)
            if microbatch is not None:
                self._busy_s += end - start

    def prefill(self, start: float, end: float) -> None:
        """Note a chunk of a prompt that ran between training ops; it is in no statistics of training."""
        record, unix, me = self._now, self.clock.unix, self._me
        assert record is not None
        span = Span(
            track="gpu", pipeline=me.pipeline, stage=me.stage, op="prefill", start=unix(start), end=unix(end)
        )
        with self._lock:
            record.spans.append(span)

    def overrun(self, by_s: float) -> None:
        """Count an emulated op whose real computation took longer than its profile says."""
        self.overruns += 1
        self.worst_overrun_s = max(self.worst_overrun_s, by_s)

    def sent(self, hop: HopDirection, microbatch: int, sent: Sent) -> None:
        """Note a message under way: its span is completed in the background when it has left."""
        record = self._now
        assert record is not None
        with self._lock:
            record.missing += 1
        if hop.track not in self._reapers:
            self._reapers[hop.track] = Background(self._reap, self._die, name=f"sent over {hop.track}")
        self._reapers[hop.track].put((record, hop, microbatch, sent))

    def _is_warm(self, record: _Iteration) -> bool:
        return self._warm_from is not None and record.number >= self._warm_from

    def finish(self, end: float) -> None:
        """Close the record of the iteration; it is written once its transfers have ended too."""
        record = self._now
        assert record is not None
        record.end = end
        begin = self._ended if self._ended is not None else record.begin
        if self._is_warm(record):
            self._iterations.append(end - begin)
            self._window_s += end - begin
        self._ended, self._last = end, record.number
        self._complete(record)

    def drain(self) -> None:
        """Wait for the transfers under way and end the background threads."""
        for reaper in self._reapers.values():
            reaper.close()

    def medians(self) -> dict[str, float]:
        """Median duration in seconds of the latest ops by kind, without the first iterations.

        Of a stage with several model chunks, the sum over its chunks.
        """
        sums: dict[str, float] = {}
        for (op, _), values in self._ops.items():
            sums[op] = sums.get(op, 0.0) + median(values)
        return sums

    def stats(self) -> dict[str, Any]:
        """This rank's part of the run's result (engine.job.result)."""
        traffic = [
            {
                "to_pipeline": self._me.pipeline,
                "to_stage": c.to_stage,
                "bytes": t.nbytes,
                "seconds": t.seconds,
            }
            for c, t in self._traffic.items()
            if c.track == "wan"
        ]
        return {
            "pipeline": self._me.pipeline,
            "stage": self._me.stage,
            "median_s": self.medians(),
            "busy_s": self._busy_s,
            "window_s": self._window_s,
            "iterations_s": list(self._iterations),
            "last_iteration": self._last,
            "traffic": traffic,
            "peak_rss_mb": peak_rss_mb(),
            "overruns": self.overruns,
            "worst_overrun_ms": self.worst_overrun_s * 1e3,
            "dropped_events": self._writer.dropped,
        }

    def _reap(self, under_way: _UnderWay) -> None:
        """In the background: wait until a message has left, and complete its span."""
        record, hop, microbatch, sent = under_way
        passage, unix = sent.wait(), self.clock.unix
        span = Span(
            track=hop.track,
            pipeline=self._me.pipeline,
            from_stage=hop.from_stage,
            to_stage=hop.to_stage,
            payload=hop.payload,
            microbatch=microbatch,
            chunk=hop.chunk,
            start=unix(passage.start),
            end=unix(passage.end),
            arrives=unix(passage.arrives),
            bytes=hop.nbytes,
        )
        with self._lock:
            record.spans.append(span)
            total = self._traffic.setdefault(hop, _Traffic())
            total.nbytes += hop.nbytes
            total.seconds += passage.end - passage.start
        self._complete(record)

    def _complete(self, record: _Iteration) -> None:
        with self._lock:
            record.missing -= 1
            if record.missing:
                return
        if self._report is not None:
            self._report(record.number, record.spans)
        if self._me.leads:  # the others of a stage do the same ops at the same time
            self._writer.offer(lambda: self._event(record))

    def _event(self, record: _Iteration) -> Spans:
        unix = self.clock.unix
        return Spans(
            rank=self._me.rank,
            iteration=record.number,
            start=unix(record.begin),
            end=unix(record.end),
            spans=tuple(record.spans),
        )


def peak_rss_mb() -> float:
    """Largest resident memory of this process so far, in MB (10^6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak * (1 if sys.platform == "darwin" else 1024) / 1e6, 1)
