"""What an admin weighs: the forecast supply of bubbles, what is sold of it, and what TTFT would become.

Every page that says how much prefill there is has it from `supply`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.core.cache import cache
from django.utils import timezone

from engine.prefill.supply import Met, Stream, longest_prompt, met, sellable
from webapp.inventory.models import DataCenter
from webapp.jobs.models import Run
from webapp.live.models import PrefillCoordinator
from webapp.prefill.cells import Cell, cells
from webapp.prefill.models import Tenancy

AHEAD_H = 24
KEPT_S = 3_600  # the supply of a cell, which only changes with what it is computed from
REQUESTS = 2000  # simulated for one answer, over all cells; at least LEAST in each
LEAST = 150
NAMED = 12  # buyers that are told of one by one
TYPICAL_PROMPT = 1_024  # tokens, of a model that nobody has bought yet


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellSupply:
    """tokens_per_min : what the cell could prefill of prompts of the typical length.

    longest : prompt that its bubbles and its KV caches take, in tokens.
    """

    cell: Cell
    tokens_per_min: float
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Supply:
    """What the bubbles of runs leave for prompts of one length, in tokens per minute.

    cells : of runs that serve the model, or will when they train.  others : of runs that serve none, and
    could: they count nowhere.  unforeseen : runs that take prompts now and have no predicted schedule.
    """

    tokens: int
    cells: list[CellSupply]
    others: list[CellSupply]
    unforeseen: list[Run]

    @property
    def held(self) -> list[CellSupply]:
        """Those of runs that hold their GPUs."""
        return [row for row in self.cells if not row.cell.planned]

    @property
    def running(self) -> float:
        return sum(row.tokens_per_min for row in self.held)

    @property
    def planned(self) -> float:
        return sum(row.tokens_per_min for row in self.cells if row.cell.planned)

    @property
    def possible(self) -> float:
        """What runs that hold their GPUs and serve no model could add."""
        return sum(row.tokens_per_min for row in self.others if not row.cell.planned)

    @property
    def longest(self) -> int:
        """The longest prompt that a run takes now, in tokens; 0 where none serves the model."""
        return max((row.longest for row in self.held), default=0)


def supply(model: str, datacenters: Sequence[DataCenter], tokens: int, *, planned: bool = True) -> Supply:
    """What the runs in `datacenters` can prefill of `model`, in prompts of `tokens` tokens.

    planned : queued runs, too; they are in a figure of their own.
    """
    rows = [_supply(cell, tokens) for cell in cells(model, datacenters, planned=planned)]
    serving = {(row.cell.run.pk, row.cell.dc.pk) for row in rows if row.cell.serves}
    teams = {dc.team_id for dc in datacenters}
    coordinators = PrefillCoordinator.objects.usable().filter(
        model=model, dc__in=datacenters, run__job__team__in=teams
    )
    unforeseen = {
        coordinator.run_id: coordinator.run
        for coordinator in coordinators.select_related("run__job").defer("run__result", "run__job__plan_copy")
        if (coordinator.run_id, coordinator.dc_id) not in serving
    }
    return Supply(
        tokens=tokens,
        cells=[row for row in rows if row.cell.serves],
        others=[row for row in rows if not row.cell.serves],
        unforeseen=list(unforeseen.values()),
    )


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

    supply : what runs that hold GPUs, and queued ones, leave.  lowest : the least of the next AHEAD_H hours,
    as running runs end.  sold : to others, in the same data centres.
    """

    supply: Supply
    lowest: float
    hours: list[tuple[datetime, float]]
    sold: float
    asked: float
    buyers: list[Buyer]

    @property
    def running(self) -> float:
        return self.supply.running

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
    available = supply(tenancy.model, datacenters, tenancy.typical_prompt)
    running, total = available.held, available.running
    others = sold(tenancy.model, datacenters, but=tenancy)
    hours = _hours(running)
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
        supply=available,
        lowest=min((rate for _, rate in hours), default=0.0),
        hours=hours,
        sold=sum(rate for _, rate in others),
        asked=tokens_per_min,
        buyers=buyers,
    )


def sold(
    model: str, datacenters: Sequence[DataCenter], *, but: Tenancy | None = None
) -> list[tuple[Tenancy, float]]:
    """Tenancies of `model` in force in `datacenters`, `but` one, each with the tokens per minute that fall on
    them: a tenancy in several data centres is taken to ask each for its share."""
    dcs = {dc.pk for dc in datacenters}
    rows = Tenancy.objects.in_force().filter(model=model, places__dc__in=dcs, places__is_granted=True)
    if but is not None:
        rows = rows.exclude(pk=but.pk)
    sales = []
    for other in rows.distinct().prefetch_related("places__dc").order_by("pk"):
        granted = {dc.pk for dc in other.datacenters}
        sales.append((other, (other.tokens_per_min or 0) * len(granted & dcs) / len(granted)))
    return sales


def _buyers(others: Sequence[tuple[Tenancy, float]]) -> tuple[list[str], list[Stream]]:
    """The NAMED largest by their names, and the rest as one, of their mean prompt and shortest objective."""
    by_size = sorted(others, key=lambda pair: -pair[1])
    largest, rest = by_size[:NAMED], by_size[NAMED:]
    names = [str(other) for other, _ in largest]
    streams = [
        Stream(tokens=other.typical_prompt, tokens_per_min=rate, ttft_ms=float(other.ttft_ms or 0))
        for other, rate in largest
    ]
    if rest:
        rate = sum(rate for _, rate in rest)
        prompts = sum(rate / other.typical_prompt for other, rate in rest)
        shortest = min(float(other.ttft_ms or 0) for other, _ in rest)
        names.append(f"{len(rest):,} more")
        streams.append(Stream(tokens=max(1, round(rate / prompts)), tokens_per_min=rate, ttft_ms=shortest))
    return names, streams


def _supply(cell: Cell, tokens: int) -> CellSupply:
    how: dict[str, Any] = {"settings": cell.settings, "cache": cell.cache, "hop": cell.hop}

    def figures() -> tuple[float, int]:
        rate = sellable(cell.fleet, cell.latency, **how, tokens=tokens)
        return rate, longest_prompt(cell.fleet, cell.latency, **how)

    text = repr((cell.fleet, cell.latency, how, tokens))
    name = f"prefill-supply-{hashlib.sha256(text.encode()).hexdigest()}"
    rate, longest = cache.get_or_set(name, figures, KEPT_S) or figures()
    return CellSupply(cell=cell, tokens_per_min=float(rate), longest=longest)


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
            cell.fleet,
            cell.latency,
            settings=cell.settings,
            cache=cell.cache,
            hop=cell.hop,
            streams=here,
            requests=each,
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
    figures = {"p50": None, "p95": None, "refused": 100 * answer.refused / answer.asked}
    if len(answer.ttft_ms):
        p50, p95 = np.quantile(answer.ttft_ms, (0.5, 0.95))
        figures |= {"p50": float(p50), "p95": float(p95)}
    return figures
