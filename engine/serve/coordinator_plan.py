"""What a coordinator knows of its data centre's GPUs: when they train, and the controller that follows it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.job.launch import LaunchSpec
from engine.job.prefill.adjacent_stages import gpus_of
from engine.job.prefill.settings import PrefillSettings
from engine.prefill.controller import Controller
from engine.prefill.handover import KvLink
from engine.prefill.in_run import LAN_BYTES_PER_S, hand_over, with_waking
from engine.prefill.index import Fleet
from engine.prefill.observed import ObservedCell, Op
from engine.prefill.placement import Cache, Moved, Placement, PlacementQuery, Refusal, Settings
from engine.prefill.slowdown import SlowDown
from engine.schedule import Schedule
from engine.serve.kv_pool import KvShape

OVERDUE_LOOK_MS = 20.0
NOTHING = Moved()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingGpus:
    """The GPUs of one data centre: `rank` by number, and how many ops each has in an iteration.

    stages : of training, in this data centre.  cells : of the run.
    """

    ranks: tuple[int, ...]
    ops: tuple[int, ...]
    stages: int
    cells: int = 1

    @classmethod
    def of(cls, spec: LaunchSpec, schedule: Schedule, dc: int) -> "TrainingGpus":
        """Those of data centre number `dc`, by pipeline, then stage."""
        gpus, count = gpus_of(spec, dc), spec.job.cell.cell_pipelines
        return cls(
            ranks=tuple(me.rank for me in gpus),
            ops=tuple(len(schedule.order(me.pipeline % count, me.stage)) for me in gpus),
            stages=spec.job.dcs.count(dc),
            cells=spec.job.cell.cells,
        )


class CoordinatorPlan:
    """Bubbles and places in them. Times in ms on the coordinator's clock.

    shape : of the caches of the first prefill stage, which has the most layers; `layers` : of all stages.
    token_bytes : of the hidden states of one token.
    """

    def __init__(
        self, gpus: TrainingGpus, settings: PrefillSettings, shape: KvShape, *, layers: int, token_bytes: int
    ) -> None:
        self.degree = settings.pp_degree
        self._latency, self._hop = with_waking(settings.latency.model, self.degree), hand_over(token_bytes)
        self._settings, self._cells, self._stages = settings, gpus.cells, gpus.stages
        self._ops, self._since = list(gpus.ops), 0
        self._cell = ObservedCell(gpus.ops, stages=gpus.stages)
        most_tokens = settings.kv_budget_bytes // shape.block_bytes * shape.block_tokens
        whole_bytes = shape.token_bytes // shape.layers * layers
        self._cache = Cache(
            token_bytes=whole_bytes,
            bytes_per_s=LAN_BYTES_PER_S,
            budget_bytes=most_tokens * whole_bytes / self.degree,  # the controller takes stages for even
        )
        self._controller: Controller | None = None
        self._looked_ms = -math.inf
        self._counts_from: int | None = None
        self._chunk_starts: list[float] = []
        self.slowdown = SlowDown(settings.pause_slowdown)
        self.guards_ms = (settings.guard_ms,) * len(gpus.ops)

    @property
    def knows(self) -> bool:
        """Whether the bubbles to come are known: not yet at first, and again where the schedule changed."""
        return self._controller is not None and self._cell.knows

    @property
    def period_ms(self) -> float:
        return self._cell.period_ms

    @property
    def controller(self) -> Controller:
        """Raises ValueError before the bubbles were known once."""
        if self._controller is None:
            raise ValueError("the bubbles are not known yet")
        return self._controller

    @property
    def look_ms(self) -> float:
        """When to look whether training is late, next time."""
        if self._controller is None:
            return math.inf
        return max(self._cell.due_ms, self._looked_ms + OVERDUE_LOOK_MS)

    def reordered(self, gpu: int, since: int, ops: int) -> bool:
        """Signal: since an iteration a GPU has so many ops, in another order. Whether that is news: then what
        was learned of the iterations before is forgotten, and no request has a place until more were seen."""
        if since <= self._since and ops == self._ops[gpu]:
            return False
        self._since, self._ops[gpu] = max(since, self._since), ops
        self._cell = ObservedCell(self._ops, stages=self._stages)
        self.slowdown, self._counts_from = SlowDown(self._settings.pause_slowdown), None
        return True

    def begun(self, iteration: int, start_ms: float, now_ms: float) -> Moved:
        """Signal: an iteration began. What it changed for requests that are accepted."""
        if iteration < self._since:
            return NOTHING
        before, begin_ms = self._cell.latest, self._cell.begin_ms
        if not self._cell.begun(iteration, start_ms) or not self._cell.knows:
            return NOTHING
        if before is not None and self._cell.latest == before + 1:
            self._count_iteration(before, begin_ms, self._cell.begin_ms)
        return self._follow(now_ms)

    def ran(
        self, gpu: int, iteration: int, starts_ms: Sequence[float], ends_ms: Sequence[float], now_ms: float
    ) -> Moved:
        """Signal: when a GPU's ops of an iteration ran. What it changed for requests that are accepted."""
        if (
            iteration < self._since
            or not self._cell.ran(gpu, iteration, starts_ms, ends_ms)
            or not self._cell.knows
        ):
            return NOTHING
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

    def offer(self, request: PlacementQuery, *, quote: bool = False) -> Placement | Refusal:
        """Accept or refuse, at `request.arrival_ms`; of a quote only say which: nothing is held."""
        controller = self.controller
        controller.paused = self.slowdown.paused
        return controller.quote(request) if quote else controller.offer(request)

    def beyond_lan_ms(self, link: KvLink | None, tokens: int) -> float:
        """How much longer the KV cache of a prompt takes to a decode GPU behind `link` than to one here."""
        if link is None:
            return 0.0
        return max(0.0, link.ms(tokens * self._cache.token_bytes) - self._cache.transfer_ms(tokens))

    def resume(
        self,
        old: Placement,
        done: int,
        now_ms: float,
        *,
        not_before_ms: float = 0.0,
        passed: Sequence[tuple[int, int]] = (),
    ) -> Placement | None:
        """See `Controller.resume`; None, too, while the bubbles are not known."""
        self._advance(now_ms)
        if not self.knows:
            self.cancel(old)
            return None
        return self.controller.resume(old, done, not_before_ms=not_before_ms, passed=passed)

    def cancel(self, placement: Placement) -> None:
        """See `Controller.cancel`."""
        self.controller.cancel(placement)

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
        if self._counts_from is None and cell.latest is not None:
            self._counts_from = cell.latest + 1
        self._advance(now_ms)
        resume_ms = cell.resume_ms(now_ms)
        return self._controller.learned(pattern, self.guards_ms, cell.bubbles(pattern, resume_ms), resume_ms)

    def _new_controller(self) -> Controller:
        settings = Settings(
            guard_ms=self._settings.guard_ms,
            queue=self._settings.queue,
            chunk_tokens=self._settings.chunk_tokens,
            reserve_ms=self._settings.reserve_ms,
        )
        fleet = Fleet(
            pattern=self._cell.pattern(), phase_ms=(0.0,), pp_degree=self.degree, cells_of_pattern=self._cells
        )
        return Controller(
            fleet, self._latency, settings=settings, hop=self._hop, cache=self._cache, searches_kept=0
        )

    def _advance(self, now_ms: float) -> None:
        controller = self.controller
        controller.advance(max(now_ms, controller.now_ms))

    def _count_iteration(self, iteration: int, begin_ms: float, end_ms: float) -> None:
        if self._counts_from is None or iteration < self._counts_from:
            return
        inside = [start for start in self._chunk_starts if begin_ms <= start < end_ms]
        self._chunk_starts = [start for start in self._chunk_starts if start >= end_ms]
        self.slowdown.iteration((end_ms - begin_ms) / 1e3, prefilled=bool(inside))
