"""Starts of a search: named ideas to build a schedule from nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np

from engine.schedule.searching.arrivals import bursts, rotation
from engine.schedule.searching.builder import ScheduleBuilder
from engine.schedule.searching.problem import Ints

# Delay of each pipeline, and of each microbatch, after the one before, in cycles.
STAGGERS = (0.0, 0.25, 0.5, 1.0)
PACES = (0.0, 1.0)
# Pipelines that share links enter in bursts of up to this many microbatches each.
MOST_BURSTS = 8
# Or all but one of them take turns, in shifts; this many lengths of shift are tried.
MOST_SHIFTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A way to build a schedule from nothing; `build` leaves it in the builder's timelines."""

    idea: str
    build: Callable[[ScheduleBuilder], int | None]


def starts(builder: ScheduleBuilder) -> Iterator[Start]:
    """All starts, the most promising first."""
    yield _served(builder, 1, 1)
    n = builder.arrays.pipelines
    for shift in range(n, n + MOST_SHIFTS * (n - 1), n - 1) if n > 1 else ():
        for growth in (0, n - 1):
            yield _rotating(builder, shift, growth)
    for burst in range(2, MOST_BURSTS + 1) if n > 1 else ():
        for turns in sorted({n - 1, n + 1, 2 * n - 1} - {1}):
            if gcd(turns, burst) == 1:
                yield _served(builder, turns, burst)
                yield _served(builder, turns, burst, strict=True)
    for stagger in STAGGERS:
        for pace in PACES:
            for late in (False, True):
                yield _chains(builder, round_robin(builder), "in turn", stagger, pace, late=late)
    for late in (False, True):
        yield _chains(builder, one_by_one(builder), "pipeline by pipeline", 0.0, 0.0, late=late)
    for stagger in STAGGERS:
        for late in (False, True):
            yield _periodic(builder, stagger, late=late)


def round_robin(builder: ScheduleBuilder) -> Ints:
    """Microbatch by microbatch, the pipelines in turn."""
    n, m = builder.arrays.pipelines, builder.arrays.microbatches
    return np.arange(n * m).reshape(n, m).T.ravel().copy()


def one_by_one(builder: ScheduleBuilder) -> Ints:
    """All microbatches of a pipeline, then the next pipeline."""
    return np.arange(builder.arrays.pipelines * builder.arrays.microbatches)


def cycle(builder: ScheduleBuilder) -> int:
    """Most work that one microbatch of each pipeline brings to any machine, in ticks."""
    rows = np.flatnonzero(builder.problem.exists)
    machine = builder.arrays.machine[rows]
    work = np.broadcast_to(builder.arrays.duration[rows][:, None], machine.shape)
    return round(np.bincount(machine.ravel(), weights=work.ravel()).max())


def _release(builder: ScheduleBuilder, stagger: float, pace: float) -> Ints:
    n, m = builder.arrays.pipelines, builder.arrays.microbatches
    turn = cycle(builder)
    return (np.arange(n) * round(stagger * turn))[:, None] + np.arange(m) * round(pace * turn)


def _chains(
    builder: ScheduleBuilder, order: Ints, order_name: str, stagger: float, pace: float, *, late: bool
) -> Start:
    idea = f"whole chains in the earliest gaps, {order_name}" + _how(stagger, pace, late=late)
    release = _release(builder, stagger, pace)
    return Start(idea=idea, build=lambda builder: builder.insert(order, release, late=late))


def _served(builder: ScheduleBuilder, pace: int, burst: int, *, strict: bool = False) -> Start:
    n, m = builder.arrays.pipelines, builder.arrays.microbatches
    entered = bursts(n, m, pace, burst)
    release = np.round(entered * (cycle(builder) / n)).astype(np.int64)
    turns = np.argsort(entered.ravel(), kind="stable") // m if strict else None
    discipline = "links in strict turns" if strict else "first come, first served"
    how = "" if burst == 1 else f", bursts of {burst}, every {pace} turns"
    return Start(idea=discipline + how, build=lambda builder: builder.serve(release, turns))


def _rotating(builder: ScheduleBuilder, shift: int, growth: int) -> Start:
    """Shifts of `shift` turns in the first half, then longer ones, as fewer microbatches follow."""
    n, m = builder.arrays.pipelines, builder.arrays.microbatches
    half = -(-n * m // (2 * shift))
    entered = rotation(n, m, [shift] * half + [shift + growth])
    release = np.round(entered * (cycle(builder) / n)).astype(np.int64)
    how = f", growing by {growth}" if growth else ""
    idea = f"forwards first, one pipeline at rest, shifts of {shift} turns{how}"
    return Start(idea=idea, build=lambda builder: builder.serve(release, forwards_first=True))


def _periodic(builder: ScheduleBuilder, stagger: float, *, late: bool) -> Start:
    n = builder.arrays.pipelines
    turn = cycle(builder)
    release = np.arange(n) * round(stagger * turn)

    def build(builder: ScheduleBuilder) -> int | None:
        order = np.arange(n)
        # The machine with most work sets the period; if phases do not fit it, a longer one may.
        for period in (turn, turn + turn // 8 + 1, turn + turn // 4 + 2):
            makespan = builder.insert_periodic(order, release, period, late=late)
            if makespan is not None:
                return makespan
        return None

    return Start(idea="phases" + _how(stagger, 0.0, late=late), build=build)


def _how(stagger: float, pace: float, *, late: bool) -> str:
    parts = ["recompute late"] if late else []
    parts += ["staggered starts"] if stagger else []
    parts += ["paced injection"] if pace else []
    return "".join(f", {part}" for part in parts)
