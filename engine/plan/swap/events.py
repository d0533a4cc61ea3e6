"""The event model of a training step: one GPU, one copy stream in, one out.

A step is a sequence of visits: sub-models forward 1…n, then backward n…1, each for the C mini-batches of the
step. A visit starts when the one before it has ended and its sub-model is loaded. When it starts, the load of
the next visit's sub-model starts, if it is not present (ATOM §IV: the second stream prefetches the next
sub-model immediately after the current one starts). Gradients of a backward visit go out on a third stream if
the policy sends them to the host. Until then they take memory, and a load that lacks it waits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.plan.swap.layers import SubModel
from engine.simulate.spans import Span

# If the step's time has not settled after this many steps, the last one is taken.
MOST_STEPS = 64
SETTLED = 1e-12
# Beyond this, a visit is drawn as one span.
MOST_SPANS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Sub-model `sub` runs all mini-batches of a step in one direction; `loads`: it comes from the host."""

    op: Literal["F", "B"]
    sub: int
    loads: bool


def atom_order(n: int) -> tuple[Visit, ...]:
    """Keeps the last sub-model after forward and the first after backward: 2(n − 1) loads (ATOM Fig. 12)."""
    forward = [Visit(op="F", sub=i, loads=i > 0) for i in range(n)]
    backward = [Visit(op="B", sub=i, loads=i < n - 1) for i in reversed(range(n))]
    return (*forward, *backward)


def naive_order(n: int) -> tuple[Visit, ...]:
    """Swaps every sub-model out after every visit, as ZeRO-Offload's row of Fig. 12: 2n loads."""
    return tuple(Visit(op=visit.op, sub=visit.sub, loads=True) for visit in atom_order(n))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that runs the step.

    accumulation : C, mini-batches per visit.
    gradients_out_bytes_per_s : rate at which a sub-model's gradients go to the host; None if they stay.
    room_bytes : of the device, which limits loads; None: loads never wait for memory.
    """

    accumulation: int
    gradients_out_bytes_per_s: float | None
    room_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One interval of a step; times in seconds from the step's first start."""

    kind: Literal["visit", "load", "out"]
    visit: Visit
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A settled step, which repeats. `stall_s` is its time without work on the GPU."""

    step_s: float
    busy_s: float
    intervals: tuple[Interval, ...]
    accumulation: int

    @property
    def stall_s(self) -> float:
        stall = self.step_s - self.busy_s
        return stall if stall > SETTLED * self.step_s else 0.0

    @property
    def utilization(self) -> float:
        return self.busy_s / self.step_s if self.stall_s else 1.0

    @property
    def seconds_per_minibatch(self) -> float:
        return self.step_s / self.accumulation

    def spans(self, subs: Sequence[SubModel]) -> list[Span]:
        """Mini-batches on the GPU, loads (op ``load``), and gradients going out (payload ``gradient``).

        `chunk` is the sub-model. With very many mini-batches a visit is one span without `microbatch`.
        """
        visits = sum(interval.kind == "visit" for interval in self.intervals)
        whole = visits * self.accumulation > MOST_SPANS
        return [span for interval in self.intervals for span in self._drawn(interval, subs, whole)]

    def _drawn(self, interval: Interval, subs: Sequence[SubModel], whole: bool) -> Iterator[Span]:
        visit, start = interval.visit, interval.start
        if interval.kind != "visit":
            yield Span(
                track="gpu",
                pipeline=0,
                stage=0,
                op="load",
                chunk=visit.sub,
                payload="gradient" if interval.kind == "out" else None,
                start=start,
                end=interval.end,
            )
            return
        pieces = 1 if whole else self.accumulation
        edges = [start + (interval.end - start) * i / pieces for i in range(pieces)] + [interval.end]
        for i in range(pieces):
            yield Span(
                track="gpu",
                pipeline=0,
                stage=0,
                op=visit.op,
                chunk=visit.sub,
                microbatch=None if whole else i,
                start=edges[i],
                end=edges[i + 1],
            )


def steady_step(subs: Sequence[SubModel], order: Sequence[Visit], machine: Machine) -> Step:
    """The step that repeats: steps are simulated until one equals the one before it."""
    events = _Events(subs, order, machine)
    intervals, length = _settled(events)
    if length < events.out_s * (1 - SETTLED):
        # The stream out is the bottleneck, and its backlog would grow for many steps: start with all of it.
        events = _Events(subs, order, machine)
        events.out_by = [2 * events.out_s] * len(subs)
        events.out_free = 2 * events.out_s
        intervals, length = _settled(events)
    busy = sum(events.duration(visit) for visit in order)
    return Step(step_s=length, busy_s=busy, intervals=tuple(intervals), accumulation=machine.accumulation)


def _settled(events: "_Events") -> tuple[list[Interval], float]:
    intervals, length = events.step()
    for _ in range(MOST_STEPS):
        before = intervals
        intervals, length = events.step()
        if _same(before, intervals, SETTLED * length):
            break
    return intervals, length


class _Events:
    """The three streams, and the time at which each is free."""

    def __init__(self, subs: Sequence[SubModel], order: Sequence[Visit], machine: Machine) -> None:
        self.subs, self.order, self.machine = subs, order, machine
        self.gpu_free = self.load_free = self.out_free = 0.0
        self.loaded = 0.0  # when the sub-model of the next visit is loaded
        self.leaving: list[tuple[float, int]] = []  # gradients in transfer: (end, sub-model)
        self.out_by = [0.0] * len(subs)  # a sub-model's gradients must be out before it produces new ones

    @property
    def out_s(self) -> float:
        """Seconds per step in which gradients go out."""
        rate = self.machine.gradients_out_bytes_per_s
        if rate is None or len(self.subs) == 1:  # a sub-model that never leaves keeps its gradients
            return 0.0
        return sum(sub.parameter_bytes for sub in self.subs) / rate

    def duration(self, visit: Visit) -> float:
        sub = self.subs[visit.sub]
        return self.machine.accumulation * (sub.forward_s if visit.op == "F" else sub.backward_s)

    def step(self) -> tuple[list[Interval], float]:
        """Simulates one more step: its intervals, and the time from its first start to the next step's."""
        origin = max(self.gpu_free, self.loaded)
        intervals: list[Interval] = []
        for visit, following in zip(self.order, [*self.order[1:], self.order[0]], strict=True):
            intervals += self._visit(visit, following)
        length = max(self.gpu_free, self.loaded) - origin
        moved = [replace(one, start=one.start - origin, end=one.end - origin) for one in intervals]
        return moved, length

    def _visit(self, visit: Visit, following: Visit) -> Iterator[Interval]:
        start = max(self.gpu_free, self.loaded, self.out_by[visit.sub] if visit.op == "B" else 0.0)
        self.gpu_free = start + self.duration(visit)
        yield Interval(kind="visit", visit=visit, start=start, end=self.gpu_free)
        swapped_first = following.sub == visit.sub  # it must be swapped out before it can be loaded again
        if swapped_first:
            yield from self._out(visit)
        if following.loads:
            earliest = self.gpu_free if swapped_first else start
            begin = self._room(visit, following, max(earliest, self.load_free))
            self.loaded = self.load_free = begin + self.subs[following.sub].load_s
            yield Interval(kind="load", visit=following, start=begin, end=self.loaded)
        if not swapped_first:
            yield from self._out(visit)

    def _out(self, visit: Visit) -> Iterator[Interval]:
        rate = self.machine.gradients_out_bytes_per_s
        if rate is None or visit.op == "F" or len(self.subs) == 1:
            return
        begin = max(self.gpu_free, self.out_free)
        self.out_by[visit.sub] = self.out_free = begin + self.subs[visit.sub].parameter_bytes / rate
        self.leaving = [item for item in self.leaving if item[0] > self.gpu_free]
        self.leaving.append((self.out_free, visit.sub))
        yield Interval(kind="out", visit=visit, start=begin, end=self.out_free)

    def _room(self, visit: Visit, following: Visit, earliest: float) -> float:
        """Earliest time at which the load of `following` has memory next to the running sub-model and
        outgoing
        gradients.
        """
        room = self.machine.room_bytes
        if room is None:
            return earliest
        swapped_first = following.sub == visit.sub
        needed = self.subs[following.sub].memory_bytes
        needed += 0.0 if swapped_first else self.subs[visit.sub].memory_bytes
        ends = [end for end, _ in self.leaving if end > earliest]
        for time in [earliest, *ends]:
            # the running sub-model's own gradients are part of its memory
            out = [sub for end, sub in self.leaving if end > time and (swapped_first or sub != visit.sub)]
            if needed + sum(self.subs[sub].parameter_bytes for sub in out) <= room:
                return time
        return max([earliest, *ends])


def _same(before: Sequence[Interval], after: Sequence[Interval], within: float) -> bool:
    return all(
        abs(a.start - b.start) <= within and abs(a.end - b.end) <= within
        for a, b in zip(before, after, strict=True)
    )
