"""What the baseline has to wait for: Schedule1F1B of torch.distributed.pipelining over gloo, simulated.

The simulator's 1F1B sends whenever a message is there. torch's waits for sends and receives together, and
asks for a message only when it needs it; gloo sends what was asked for, and the asking goes the way of the
bytes that flow back on the same connection, behind those that are there. Pipelines share nothing, so one is
enough.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from benchmarks.wan_testbed.case import DC_OF_STAGE, DELAY_S, MICROBATCHES, Case

Process = Iterator["float | list[Handle]"]  # seconds of computing, or messages that are waited for
Way = tuple[int, int]  # from a stage to its neighbour


def waiting_s(case: Case, bytes_per_s: float, lan_bytes_per_s: float) -> float:
    """Seconds of an iteration where a connection over the WAN, or the LAN, carries so much."""
    wan = Hop(message_s=case.message_bytes / bytes_per_s, latency_s=DELAY_S)
    lan = Hop(message_s=case.message_bytes / lan_bytes_per_s, latency_s=0.0)
    hops = [wan if a != b else lan for a, b in pairwise(DC_OF_STAGE)]
    forward_s, back_s = case.times.forward / 1e3, (case.times.recompute + case.times.backward) / 1e3  # type: ignore[operator]
    return Pipeline(hops, microbatches=MICROBATCHES, forward_s=forward_s, backward_s=back_s).iteration_s()


@dataclass(slots=True, eq=False)
class Handle:
    """A message as one of its ends sees it: posted, and at some time done."""

    done: bool = False
    resume: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """Between two stages: seconds that a message occupies one way of their connection, and of a way."""

    message_s: float
    latency_s: float


@dataclass(slots=True)
class _Way:
    """One direction of a connection: a queue of bytes. asked : messages that its receiver wants, as known."""

    hop: Hop
    free_s: float = 0.0
    asked: int = 0
    sends: deque[Handle] = field(default_factory=deque)
    receives: deque[Handle] = field(default_factory=deque)


class Pipeline:
    """One iteration of a pipeline of 1F1B.

    hops : of each stage to the next.  forward_s, backward_s : of every stage.
    """

    def __init__(self, hops: list[Hop], *, microbatches: int, forward_s: float, backward_s: float) -> None:
        self._stages, self._microbatches = len(hops) + 1, microbatches
        self._forward_s, self._backward_s = forward_s, backward_s
        self._ways: dict[Way, _Way] = {}
        for stage, hop in enumerate(hops):
            self._ways[stage, stage + 1], self._ways[stage + 1, stage] = _Way(hop), _Way(hop)
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()

    def iteration_s(self) -> float:
        """Seconds until the last stage has ended and all that it sent has left."""
        for stage in range(self._stages):
            self._go_on(self._schedule(stage))
        while self._events:
            self._now_s, _, act = heapq.heappop(self._events)
            act()
        return self._now_s

    def _schedule(self, stage: int) -> Process:
        """What a stage does, in the order of torch.distributed.pipelining.schedules.Schedule1F1B."""
        before, after, many = stage - 1, stage + 1, self._microbatches
        warm_up = min(many, self._stages - stage)
        sending: list[Handle] = []
        for m in range(warm_up):
            yield self._receive(before, stage)
            yield self._forward_s
            yield sending
            if m < warm_up - 1:
                sending = self._send(stage, after)
        for m in range(warm_up, many + 1):
            yield self._send(stage, after) + self._receive(after, stage)
            yield self._backward_s
            if m < many:
                yield self._send(stage, before) + self._receive(before, stage)
                yield self._forward_s
        sending = self._send(stage, before)
        for _ in range(warm_up - 1):
            yield self._receive(after, stage)
            yield self._backward_s
            yield sending
            sending = self._send(stage, before)
        yield sending

    def _go_on(self, process: Process) -> None:
        for step in process:
            if isinstance(step, float):
                self._at(self._now_s + step, partial(self._go_on, process))
                return
            left = {handle for handle in step if not handle.done}
            for handle in left:
                handle.resume = partial(self._came, handle, left, process)
            if left:
                return

    def _came(self, handle: Handle, left: set[Handle], process: Process) -> None:
        left.discard(handle)
        if not left:
            self._go_on(process)

    def _send(self, stage: int, to: int) -> list[Handle]:
        if (stage, to) not in self._ways:
            return []
        handle, way = Handle(), self._ways[stage, to]
        way.sends.append(handle)
        self._start(way)
        return [handle]

    def _receive(self, source: int, stage: int) -> list[Handle]:
        if (source, stage) not in self._ways:
            return []
        handle, way, back = Handle(), self._ways[source, stage], self._ways[stage, source]
        way.receives.append(handle)
        back.free_s = max(back.free_s, self._now_s)
        self._at(back.free_s + back.hop.latency_s, partial(self._ask, way))
        return [handle]

    def _ask(self, way: _Way) -> None:
        way.asked += 1
        self._start(way)

    def _start(self, way: _Way) -> None:
        """Send what is there and was asked for."""
        while way.asked and way.sends:
            way.asked -= 1
            sent, received = way.sends.popleft(), way.receives.popleft()
            way.free_s = max(way.free_s, self._now_s) + way.hop.message_s
            self._at(way.free_s, partial(_done, sent))
            self._at(way.free_s + way.hop.latency_s, partial(_done, received))

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._sequence), act))


def _done(handle: Handle) -> None:
    handle.done = True
    if handle.resume is not None:
        handle.resume()
