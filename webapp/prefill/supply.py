"""What an admin weighs: the forecast supply of bubbles, what is sold of it, and what TTFT would become."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.core.cache import cache
from django.utils import timezone

from engine.prefill.supply import Met, Stream, met, sellable
from webapp.inventory.models import DataCenter
from webapp.prefill.cells import Cell, cells
from webapp.prefill.models import Tenancy

AHEAD_H = 24
KEPT_S = 60  # supply of a cell
REQUESTS = 2000  # simulated for one answer, over all cells; at least LEAST in each
LEAST = 150
NAMED = 12  # buyers that are told of one by one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellSupply:
    """tokens_per_min : what the cell could prefill of prompts of the typical length."""

    cell: Cell
    tokens_per_min: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buyer:
    """What one tenancy meets before and after the request is granted; None where nothing was simulated.

    refused : share of its requests.
    """

    name: str
    prompt: int
    tokens_per_min: float
    ttft_ms: int
    is_new: bool
    now: dict[str, float | None]
    after: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """Rates in tokens per minute of prompts of the typical length.

    running, planned : what runs that hold GPUs, and queued ones, leave.  lowest : the least of the next
    AHEAD_H hours, as running runs end.  sold : to others, in the same data centres.
    """

    cells: list[CellSupply]
    running: float
    planned: float
    lowest: float
    hours: list[tuple[datetime, float]]
    sold: float
    asked: float
    buyers: list[Buyer]

    @property
    def after(self) -> float:
        return self.sold + self.asked

    @property
    def share_after(self) -> float | None:
        """Of the running supply, in %."""
        return 100 * self.after / self.running if self.running else None

    @property
    def left(self) -> float:
        return self.lowest - self.after

    @property
    def new(self) -> Buyer:
        return next(buyer for buyer in self.buyers if buyer.is_new)


def forecast(
    tenancy: Tenancy, datacenters: Sequence[DataCenter], *, tokens_per_min: float, ttft_ms: int
) -> Forecast:
    """What granting `tenancy` these limits would mean, by the schedules of running and queued runs."""
    rows = [_supply(cell, tenancy.typical_prompt) for cell in cells(tenancy.model, datacenters)]
    running = [row for row in rows if not row.cell.planned]
    others = sold_to(tenancy, datacenters)
    hours = _hours(running)
    total = sum(row.tokens_per_min for row in running)
    names, streams = _buyers(others)
    mine = Stream(tokens=tenancy.typical_prompt, tokens_per_min=tokens_per_min, ttft_ms=float(ttft_ms))
    before = _met(running, total, streams) if total else [None] * len(streams)
    after = _met(running, total, [*streams, mine]) if total else [None] * (len(streams) + 1)
    buyers = [
        Buyer(
            name=name,
            prompt=stream.tokens,
            tokens_per_min=stream.tokens_per_min,
            ttft_ms=int(stream.ttft_ms),
            is_new=i == len(streams),
            now=_figures(before[i] if i < len(streams) else None),
            after=_figures(after[i]),
        )
        for i, (name, stream) in enumerate(zip([*names, str(tenancy)], [*streams, mine], strict=True))
    ]
    return Forecast(
        cells=rows,
        running=total,
        planned=sum(row.tokens_per_min for row in rows if row.cell.planned),
        lowest=min((rate for _, rate in hours), default=0.0),
        hours=hours,
        sold=sum(rate for _, rate in others),
        asked=tokens_per_min,
        buyers=buyers,
    )


def sold_to(tenancy: Tenancy, datacenters: Sequence[DataCenter]) -> list[tuple[Tenancy, float]]:
    """Other tenancies in force in `datacenters`, each with the tokens per minute that fall on them: a tenancy
    in several data centres is taken to ask each for its share."""
    wanted = {dc.pk for dc in datacenters}
    rows = Tenancy.objects.in_force().filter(
        model=tenancy.model, places__dc__in=wanted, places__is_granted=True
    )
    found = rows.exclude(pk=tenancy.pk).distinct().prefetch_related("places__dc").order_by("pk")
    made = []
    for other in found:
        granted = {dc.pk for dc in other.datacenters}
        made.append((other, (other.tokens_per_min or 0) * len(granted & wanted) / len(granted)))
    return made


def _buyers(others: Sequence[tuple[Tenancy, float]]) -> tuple[list[str], list[Stream]]:
    """The NAMED largest by their names, and the rest as one, of their mean prompt and shortest objective."""
    ordered = sorted(others, key=lambda pair: -pair[1])
    named, rest = ordered[:NAMED], ordered[NAMED:]
    names = [str(other) for other, _ in named]
    streams = [
        Stream(tokens=other.typical_prompt, tokens_per_min=rate, ttft_ms=float(other.ttft_ms or 0))
        for other, rate in named
    ]
    if rest:
        rate = sum(rate for _, rate in rest)
        prompts = sum(rate / other.typical_prompt for other, rate in rest)
        shortest = min(float(other.ttft_ms or 0) for other, _ in rest)
        names.append(f"{len(rest):,} more")
        streams.append(Stream(tokens=max(1, round(rate / prompts)), tokens_per_min=rate, ttft_ms=shortest))
    return names, streams


def _supply(cell: Cell, tokens: int) -> CellSupply:
    def rate() -> float:
        return sellable(cell.fleet, cell.latency, settings=cell.settings, cache=cell.cache, tokens=tokens)

    name = "prefill-supply-" + "-".join(str(part) for part in (*cell.key, cell.cache.token_bytes, tokens))
    return CellSupply(cell=cell, tokens_per_min=float(cache.get_or_set(name, rate, KEPT_S) or 0.0))


def _hours(running: Sequence[CellSupply]) -> list[tuple[datetime, float]]:
    """The supply at the beginning of each of the next AHEAD_H hours, as far as runs still last then."""
    now = timezone.now()
    times = [now + timedelta(hours=hour) for hour in range(AHEAD_H + 1)]
    return [
        (at, sum(row.tokens_per_min for row in running if row.cell.until is None or row.cell.until > at))
        for at in times
    ]


def _met(running: Sequence[CellSupply], total: float, streams: Sequence[Stream]) -> list[Met | None]:
    """Each cell gets its share of every stream; what prompts met is put together."""
    if not streams:
        return []
    each = max(LEAST, REQUESTS // max(1, len(running)))
    parts: list[list[Met]] = [[] for _ in streams]
    for row in running:
        share = row.tokens_per_min / total
        here = [
            Stream(tokens=s.tokens, tokens_per_min=s.tokens_per_min * share, ttft_ms=s.ttft_ms)
            for s in streams
        ]
        cell = row.cell
        answers = met(
            cell.fleet, cell.latency, settings=cell.settings, cache=cell.cache, streams=here, requests=each
        )
        for part, answer in zip(parts, answers, strict=True):
            part.append(answer)
    return [
        Met(ttft_ms=np.concatenate([m.ttft_ms for m in part]), refused=sum(m.refused for m in part))
        for part in parts
    ]


def _figures(answer: Met | None) -> dict[str, Any]:
    if answer is None or not answer.asked:
        return {"p50": None, "p95": None, "refused": None}
    found = {"p50": None, "p95": None, "refused": 100 * answer.refused / answer.asked}
    if len(answer.ttft_ms):
        p50, p95 = np.quantile(answer.ttft_ms, (0.5, 0.95))
        found |= {"p50": float(p50), "p95": float(p95)}
    return found
