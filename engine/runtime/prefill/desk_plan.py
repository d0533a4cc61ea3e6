"""What a desk knows of its data centre's GPUs: when they train, and the controller that follows that."""

import math
from dataclasses import dataclass

from engine.prefill.controller import Controller
from engine.prefill.index import Fleet
from engine.prefill.latency import LatencyModel
from engine.prefill.observed import ObservedCell, Op
from engine.prefill.placement import Cache, Moved, Placement, Refusal, Request, Settings
from engine.prefill.slowdown import SlowDown
from engine.runtime.job import TrainJob
from engine.runtime.prefill.kv_pool import KvShape
from engine.runtime.prefill.settings import PrefillSettings
from engine.schedule import Schedule

# A chunk's begin, and the end of an emulated one, come later than asked for: threads wake within this.
WAKING_MS = 0.5
LAN_BYTES_PER_S = 12.5e9  # of the decode worker's link: 100 Gbit/s
OVERDUE_LOOK_MS = 20.0
NOTHING = Moved()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """The GPUs of one data centre: `rank` by number, and how many ops each has in an iteration."""

    ranks: tuple[int, ...]
    ops: tuple[int, ...]
    stages: int

    @classmethod
    def of(cls, job: TrainJob, schedule: Schedule, dc: int) -> "Seats":
        """Those of data centre number `dc`, by pipeline, then stage."""
        stages = [stage for stage, where in enumerate(job.dcs) if where == dc]
        places = [(pipeline, stage) for pipeline in range(job.pipelines) for stage in stages]
        count = job.cell_pipelines
        return cls(
            ranks=tuple(pipeline * job.stages + stage for pipeline, stage in places),
            ops=tuple(len(schedule.order(pipeline % count, stage)) for pipeline, stage in places),
            stages=len(stages),
        )


class DeskPlan:
    """Bubbles and places in them. Times in ms on the desk's clock."""

    def __init__(self, seats: Seats, settings: PrefillSettings, shape: KvShape) -> None:
        model = settings.latency.model
        self._latency = LatencyModel(a_ms=model.a_ms + WAKING_MS, b_ms=model.b_ms, c_ms=model.c_ms)
        self._settings = settings
        self._cell = ObservedCell(seats.ops, stages=seats.stages)
        blocks = settings.kv_budget_bytes // shape.block_bytes
        self._cache = Cache(
            token_bytes=shape.token_bytes,
            bytes_per_s=LAN_BYTES_PER_S,
            budget_bytes=blocks * shape.block_bytes,
        )
        self._controller: Controller | None = None
        self._looked_ms = -math.inf
        self._counts_from: int | None = None
        self._chunk_starts: list[float] = []
        self.slowdown = SlowDown(settings.pause_slowdown)
        self.guards_ms = (settings.guard_ms,) * len(seats.ops)

    @property
    def knows(self) -> bool:
        """Whether the bubbles to come are known."""
        return self._controller is not None

    @property
    def period_ms(self) -> float:
        return self._cell.period_ms

    @property
    def controller(self) -> Controller:
        """Raises ValueError before the bubbles are known."""
        if self._controller is None:
            raise ValueError("the bubbles are not known yet")
        return self._controller

    def op_ended(self, gpu: int, op: Op, start_ms: float, end_ms: float, now_ms: float) -> Moved:
        """Signal: a training op ran. What it changed for requests that are accepted."""
        before, begin_ms = self._cell.latest, self._cell.begin_ms
        if not self._cell.ended(gpu, op, start_ms, end_ms) or not self._cell.knows:
            return NOTHING
        if before is not None and self._cell.latest == before + 1:
            self._count_iteration(before, begin_ms, self._cell.begin_ms)
        return self._follow(now_ms)

    def look(self, now_ms: float, *, at_once: bool = False) -> Moved:
        """Time passed: an iteration that should have begun and has not moves all that comes.

        Looked for now and then, or `at_once`.
        """
        due = at_once or now_ms - self._looked_ms >= OVERDUE_LOOK_MS
        if self._controller is None or not due or not self._cell.overdue(now_ms):
            return NOTHING
        self._looked_ms = now_ms
        self._advance(now_ms)
        pattern = self.controller.fleet.pattern
        resume_ms = self._cell.resume_ms(now_ms)
        return self.controller.training_moved(0, self._cell.bubbles(pattern, resume_ms), resume_ms)

    def offer(self, request: Request) -> Placement | Refusal:
        """Accept or refuse, at `request.arrival_ms`."""
        controller = self.controller
        controller.paused = self.slowdown.paused
        return controller.offer(request)

    def resume(
        self, old: Placement, done: int, now_ms: float, *, not_before_ms: float = 0.0
    ) -> Placement | None:
        """See `Controller.resume`."""
        self._advance(now_ms)
        return self.controller.resume(old, done, not_before_ms=not_before_ms)

    def advance(self, now_ms: float) -> None:
        """Set the clock."""
        if self._controller is not None:
            self._advance(now_ms)

    def before_op(self, gpu: int, begin_ms: float, now_ms: float) -> tuple[Op, float]:
        """The training op before which an interval lies, and by when a chunk in it must be done."""
        op, starts_ms = self._cell.next_op(gpu, begin_ms, resume_ms=self._cell.resume_ms(now_ms))
        return op, starts_ms - self.guards_ms[gpu] / 2

    def chunk_ran(self, start_ms: float) -> None:
        """A chunk ran, which counts for the iteration that it began in."""
        self._chunk_starts.append(start_ms)

    def _follow(self, now_ms: float) -> Moved:
        pattern, cell = self._cell.pattern(), self._cell
        self.guards_ms = cell.guards_ms(self._settings.guard_ms)
        if self._controller is None:
            self._controller = self._new_controller()
            self._counts_from = None if cell.latest is None else cell.latest + 1
        self._advance(now_ms)
        resume_ms = cell.resume_ms(now_ms)
        return self._controller.learned(pattern, self.guards_ms, cell.bubbles(pattern, resume_ms), resume_ms)

    def _new_controller(self) -> Controller:
        settings = Settings(
            guard_ms=self._settings.guard_ms, queue=self._settings.queue,
            chunk_tokens=self._settings.chunk_tokens, reserve_ms=self._settings.reserve_ms,
        )  # fmt: skip
        fleet = Fleet(pattern=self._cell.pattern(), phase_ms=(0.0,))
        return Controller(fleet, self._latency, settings=settings, cache=self._cache)

    def _advance(self, now_ms: float) -> None:
        controller = self.controller
        controller.advance(max(now_ms, controller.now_ms))

    def _count_iteration(self, iteration: int, begin_ms: float, end_ms: float) -> None:
        if self._counts_from is None or iteration < self._counts_from:
            return
        inside = [start for start in self._chunk_starts if begin_ms <= start < end_ms]
        self._chunk_starts = [start for start in self._chunk_starts if start >= end_ms]
        self.slowdown.iteration((end_ms - begin_ms) / 1e3, prefilled=bool(inside))
