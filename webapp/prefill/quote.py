"""Whether a prompt would be admitted now: asked of the controller, over the bubbles of the runs in a DC."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from engine.prefill.controller import Controller
from engine.prefill.placement import Placement, PlacementQuery, Refusal
from webapp.inventory.models import DataCenter
from webapp.jobs.models import Run, Status
from webapp.live.models import IterationStat
from webapp.prefill.cells import Cell, cells

CELLS_KEPT_S = 10.0  # which runs there are, and where, is read that often
SILENT_S = (
    30.0  # a run whose iterations have not been heard of for so long (or three of them) is not counted on
)
NOTHING_RUNS_MS = 30_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A place that the prompt would have got. Nothing is kept for it. Times in ms, None where they are not
    foretold."""

    queue_ms: float | None
    ttft_ms: float | None


@dataclass(slots=True, kw_only=True)
class _LiveCell:
    """A controller of one cell, on a clock whose iterations begin with those of the run."""

    cell: Cell
    controller: Controller

    def now_ms(self, since_begin_ms: float) -> float:
        """The next moment on the controller's clock at which the iteration is as old as the run's is."""
        period = self.cell.period_ms
        phase = since_begin_ms % period
        laps = max(0, ceil((self.controller.now_ms - phase) / period))
        return laps * period + phase


_lock = threading.Lock()
_found: dict[tuple[str, int], tuple[float, list[_LiveCell]]] = {}


def foretells(model: str, dc: DataCenter) -> bool:
    """Whether `quote` has something to go by: the predicted schedule of a run that serves `model` in `dc`,
    and the times of the model."""
    with _lock:
        return bool(_live_cells(model, dc))


def quote(model: str, dc: DataCenter, tokens: int, ttft_ms: float) -> Quote | Refusal:
    """What the controller would answer to a prompt of `tokens` that must be done within `ttft_ms`.

    Of the runs that serve it in `dc`, the one that would be done first answers. What is known are the
    schedules and when their iterations began.
    """
    with _lock:
        live = _live_cells(model, dc)
        first_chunk = _begun(live)
        answers = [
            _ask(one, first_chunk[one.cell.run.pk], tokens, ttft_ms)
            for one in live
            if one.cell.run.pk in first_chunk
        ]
    return soonest(answers) if answers else Refusal(reason="no_bubble", retry_after_ms=NOTHING_RUNS_MS)


def soonest(answers: Sequence[Quote | Refusal]) -> Quote | Refusal:
    """Of one or more answers the place that is done first (untimed last), else the refusal after which
    to try again first."""
    admitted = [answer for answer in answers if isinstance(answer, Quote)]
    if admitted:
        return min(admitted, key=lambda answer: inf if answer.ttft_ms is None else answer.ttft_ms)
    refused = [answer for answer in answers if isinstance(answer, Refusal)]
    return min(refused, key=lambda r: inf if r.retry_after_ms is None else r.retry_after_ms)


def _live_cells(model: str, dc: DataCenter) -> list[_LiveCell]:
    """Controllers of the cells in `dc`; one is kept for as long as its run has the same GPUs."""
    key = model, dc.pk
    at, cached_cells = _found.get(key, (-CELLS_KEPT_S, []))
    if time.monotonic() - at < CELLS_KEPT_S:
        return cached_cells
    by_key = {one.cell.key: one for one in cached_cells}
    live = []
    for cell in cells(model, [dc], planned=False):
        if cell.serves and cell.run.status == Status.RUNNING:
            live.append(by_key.get(cell.key) or _LiveCell(cell=cell, controller=_controller(cell)))
    _found[key] = time.monotonic(), live
    return live


def _controller(cell: Cell) -> Controller:
    return Controller(cell.fleet, cell.latency, settings=cell.settings, cache=cell.cache, hop=cell.hop)


def _begun(live: list[_LiveCell]) -> dict[int, float]:
    """{run: ms since its present iteration began} of those that are heard of."""
    periods = {one.cell.run.pk: one.cell.period_ms for one in live}
    last: Any = IterationStat.objects.filter(run__in=periods, end__isnull=False)
    newest = last.order_by("run", "-iteration").distinct("run").values_list("run", "end")
    alive = set(Run.objects.filter(pk__in=periods, status=Status.RUNNING).values_list("pk", flat=True))
    now = time.time()
    since = {run: (now - end) * 1e3 for run, end in newest if run in alive}
    return {run: max(0.0, ms) for run, ms in since.items() if ms < max(SILENT_S * 1e3, 3 * periods[run])}


def _ask(one: _LiveCell, since_begin_ms: float, tokens: int, ttft_ms: float) -> Quote | Refusal:
    now_ms = one.now_ms(since_begin_ms)
    query = PlacementQuery(id="quote", tokens=tokens, arrival_ms=now_ms, deadline_ms=now_ms + ttft_ms)
    answer = one.controller.quote(query)
    if isinstance(answer, Placement):
        return Quote(queue_ms=answer.queue_ms, ttft_ms=answer.ttft_ms)
    return answer
