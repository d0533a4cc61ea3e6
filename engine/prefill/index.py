"""The bubble index: the future free gaps of every GPU of a run, and the search for a placement in them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.prefill.bubbles import Interval, TrainingPattern
from engine.prefill.kernels import gaps as store
from engine.prefill.kernels import place as kernel
from engine.prefill.latency import Hop, LatencyModel

Floats = NDArray[np.float64]

ANY_DC = store.NONE
# Of this many pipelines that could begin a request at once, the first to end it is taken.
LOOKS = 4
# Gaps that a row holds beyond those of its pattern, for those that placed requests split off.
SPLIT_ROOM = 64
MOST_GAPS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The GPUs of a run: DP-cells of one pattern.

    phase_ms : delay of each cell after the first.
    pp_degree : a prefill pipeline is the GPUs of one rank in this many adjacent cells.
    cells_of_pattern : number of cells that the pattern covers, an equal part of its pipelines each, for
        example if every GPU was observed; all other fields treat them as one cell.
    """

    pattern: TrainingPattern
    phase_ms: tuple[float, ...]
    pp_degree: int = 1
    cells_of_pattern: int = 1

    def __post_init__(self) -> None:
        cells = self.cells * self.cells_of_pattern
        if self.pp_degree < 1 or cells % self.pp_degree:
            allowed = f"must divide the number of cells, {cells}: each stage is one GPU of a different cell"
            raise InputError("pp_degree", self.pp_degree, allowed)
        if self.pattern.pipelines % self.cells_of_pattern:
            allowed = f"must divide the pattern's {self.pattern.pipelines} pipelines"
            raise InputError("cells_of_pattern", self.cells_of_pattern, allowed)

    @property
    def cells(self) -> int:
        return len(self.phase_ms)

    @property
    def gpus(self) -> int:
        return self.cells * self.pattern.gpus

    def location(self, gpu: int) -> tuple[int, int, int]:
        """(cell, pipeline, stage) of a GPU's number."""
        cell, rank = divmod(gpu, self.pattern.gpus)
        return cell, *divmod(rank, self.pattern.stages)

    def gpu(self, cell: int, pipeline: int, stage: int) -> int:
        """The inverse of :meth:`location`."""
        return cell * self.pattern.gpus + pipeline * self.pattern.stages + stage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A placement: its end, and the intervals, rows of (GPU, begin, end, tokens)."""

    pipeline: int
    end_ms: float
    rows: Floats

    @property
    def start_ms(self) -> float:
        return float(self.rows[0, kernel.BEGIN])


@dataclass(frozen=True, slots=True)
class Flying:
    """A chunk of `tokens` tokens that continues at stage `first` of its pipeline; its input is there at
    `arrives_ms`.
    """

    tokens: int
    first: int
    arrives_ms: float


class BubbleIndex:
    """Free gaps from now on, up to `horizon_ms` ahead. Times in ms on one clock, which only goes forward.

    guard_ms : reserved before every training op; of all GPUs, or of each by its rank in a cell.
    chunk : least tokens of a chunk; None: whole requests.
    """

    def __init__(
        self,
        fleet: Fleet,
        latency: LatencyModel,
        hop: Hop,
        *,
        chunk: int | None,
        guard_ms: float | Sequence[float],
        horizon_ms: float,
    ) -> None:
        self.fleet = fleet
        self._guards_ms: list[float] = np.broadcast_to(guard_ms, fleet.pattern.gpus).tolist()
        self.horizon_ms = horizon_ms
        self._gaps = _gaps(fleet, _guarded(fleet.pattern, self._guards_ms), horizon_ms)
        smallest_ms = latency.stage_ms(chunk, fleet.pp_degree) if chunk else 0.0
        self._room = _room(fleet, latency, hop, len(self._gaps.edges[0]), smallest_ms)
        self.advance(0.0)
        self._load()

    @property
    def bytes(self) -> int:
        """Memory of the index."""
        return sum(array.nbytes for array in (*self._gaps, *self._room))

    def _load(self) -> None:
        """Loads compiled code now, not while the first request waits."""
        self.find(1, chunk=1, not_before_ms=0.0)
        self._room.turn[0] = 0
        nothing = np.zeros((0, 4))
        self.try_take(nothing)
        self.give(nothing)

    def advance(self, now_ms: float) -> None:
        """Sets the clock; gaps before `now_ms` are dropped."""
        clock = self._gaps.clock
        clock[store.NOW] = now_ms
        clock[store.UNTIL] = now_ms + self.horizon_ms

    def find(self, tokens: int, *, chunk: int, not_before_ms: float, dc: int = ANY_DC) -> Fit | None:
        """The pipeline that begins a request first, at or after `not_before_ms`; None within the horizon.

        Parameters
        ----------
        chunk : least tokens of a chunk (a request's last may be smaller); `tokens`: the request stays whole.
        dc : index of the DC in which it must run.
        """
        pipeline, end_ms, count = kernel.find(self._gaps, self._room, tokens, chunk, not_before_ms, dc, LOOKS)
        if pipeline == store.NONE:
            return None
        return Fit(pipeline=pipeline, end_ms=end_ms, rows=self._room.rows[:count].copy())

    def resume(
        self,
        pipeline: int,
        tokens: int,
        *,
        done: int,
        chunk: int,
        not_before_ms: float,
        flying: Sequence["Flying"] = (),
    ) -> Fit | None:
        """The rest of a request whose first `done` tokens have their cache on all stages of `pipeline`.

        flying : the later chunks that have passed some of its stages; only their rest is placed.
        """
        ahead = np.array([(one.tokens, one.first, one.arrives_ms) for one in flying]).reshape(-1, 3)
        for gpu in self._room.stages[pipeline].tolist():
            store.forget_past(self._gaps, gpu)
        end_ms, count = kernel.lay_request(
            self._gaps, self._room, pipeline, tokens, done, chunk, not_before_ms, ahead
        )
        if count == 0:
            return None
        return Fit(pipeline=pipeline, end_ms=end_ms, rows=self._room.rows[:count].copy())

    def take(self, rows: Floats) -> None:
        """Takes the intervals of `rows`. Raises ValueError, and takes none, if one is not free."""
        if not kernel.take_all(self._gaps, self._room, rows):
            raise ValueError("an interval is not free")

    def try_take(self, rows: Floats) -> bool:
        """Takes the intervals of `rows`, or none of them."""
        return bool(kernel.take_all(self._gaps, self._room, rows))

    def give(self, rows: Floats) -> None:
        """Returns intervals that were taken."""
        kernel.give_all(self._gaps, self._room, rows)

    def free(self, gpu: int) -> list[Interval]:
        """The current gaps of a GPU's row, without guards."""
        head, tail = self._gaps.book[gpu, [store.HEAD, store.TAIL]].tolist()
        return [(float(b), float(e)) for b, e in self._gaps.edges[gpu, head:tail]]

    def replace(self, cell: int, bubbles: Sequence[Iterable[Interval]], resume_ms: float) -> None:
        """New bubbles of a cell's GPUs, by rank, up to `resume_ms`, when its pattern begins again.

        No interval is taken in them: the caller takes again those that it keeps.
        """
        gaps, first = self._gaps, cell * self.fleet.pattern.gpus
        self._room.soonest[:] = -np.inf
        for rank, intervals in enumerate(bubbles):
            g = first + rank
            gaps.book[g, [store.HEAD, store.TAIL, store.NEXT, store.LAP]] = 0
            gaps.offset[g] = resume_ms
            # The bubble that reaches from one iteration into the next is one, and its guard at its end.
            reaches = resume_ms + self._first_op_ms(rank)
            for begin, end in intervals:
                until = reaches if end >= resume_ms - store.EPS else end - self._guards_ms[rank]
                if until > begin + store.EPS:
                    store.append(gaps, g, begin, until)

    def _first_op_ms(self, rank: int) -> float:
        """From the begin of an iteration to the guard of a GPU's first op; 0 if it has none."""
        busy = self.fleet.pattern.busy[rank // self.fleet.pattern.stages][rank % self.fleet.pattern.stages]
        return busy[0][0] - self._guards_ms[rank] if busy else 0.0


def _guarded(pattern: TrainingPattern, guards_ms: Sequence[float]) -> list[list[Interval]]:
    """The bubbles of each GPU by rank, less its guard; a GPU that never trains needs none."""
    guarded = []
    for (p, s), guard_ms in zip(np.ndindex(pattern.pipelines, pattern.stages), guards_ms, strict=True):
        off = guard_ms if pattern.busy[p][s] else 0.0
        guarded.append([(b, e - off) for b, e in pattern.bubbles(p, s) if e - off > b + store.EPS])
    return guarded


def _gaps(fleet: Fleet, patterns: list[list[Interval]], horizon_ms: float) -> store.Gaps:
    most = max(1, max(len(pattern) for pattern in patterns))
    laps = horizon_ms / fleet.pattern.period_ms + 2
    room = int(min(MOST_GAPS, 2 * (laps * most + SPLIT_ROOM)))
    table = np.zeros((len(patterns), most, 2))
    for kind, pattern in enumerate(patterns):
        if pattern:
            table[kind, : len(pattern)] = pattern
    book = np.zeros((fleet.gpus, 5), dtype=np.int64)
    book[:, store.LAP] = -1  # a gap that began before the clock may reach into it
    book[:, store.KIND] = np.tile(np.arange(len(patterns)), fleet.cells)
    return store.Gaps(
        edges=np.zeros((fleet.gpus, room, 2)),
        book=book,
        offset=np.repeat(np.array(fleet.phase_ms, dtype=np.float64), fleet.pattern.gpus),
        pattern=table,
        counts=np.array([len(pattern) for pattern in patterns], dtype=np.int64),
        clock=np.array([0.0, horizon_ms, fleet.pattern.period_ms]),
    )


def _room(fleet: Fleet, latency: LatencyModel, hop: Hop, gaps: int, smallest_ms: float) -> kernel.Room:
    degree, ranks = fleet.pp_degree, fleet.pattern.gpus // fleet.cells_of_pattern
    groups = np.arange(fleet.gpus).reshape(-1, degree, ranks).transpose(0, 2, 1)
    stages = np.ascontiguousarray(groups.reshape(-1, degree))
    dcs = np.array(fleet.pattern.dc_of_stage, dtype=np.int64)
    first_of = np.full(fleet.gpus, store.NONE, dtype=np.int64)
    first_of[stages[:, 0]] = np.arange(len(stages))
    return kernel.Room(
        stages=stages,
        dc=dcs[stages[:, 0] % fleet.pattern.stages],
        first_of=first_of,
        soonest=np.full((2, len(stages)), -np.inf),
        smallest=np.array([smallest_ms]),
        model=np.array([latency.a_ms, latency.b_ms, latency.c_ms, hop.fixed_ms, hop.token_ms]),
        rows=np.zeros((gaps * degree, 4)),
        ready=np.zeros(degree),
        at=np.zeros(degree, dtype=np.int64),
        last_gap=np.zeros(degree, dtype=np.int64),
        turn=np.zeros(1, dtype=np.int64),
        nothing=np.zeros((0, 3)),
    )
