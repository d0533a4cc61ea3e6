"""What operators see of running prefill: coordinators, their last minutes, and the experience of tenants."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from django.utils import timezone

from engine.job.shape import shape_of
from webapp.accounts.models import OPERATORS, Team
from webapp.inventory.selectors import datacenter_name
from webapp.jobs.models import Run, Status
from webapp.live.models import CoordinatorState, PrefillCoordinator, PrefillSecond
from webapp.live.selectors import usages
from webapp.live.services.coordinators import merged
from webapp.prefill.models import Outcome, UsageEvent
from webapp.prefill.offers import ServedModel, served_now
from webapp.prefill.reasons import WHY

MOST_RUNS = 20
WINDOW_S = 60.0  # of the figures
CHART_S, BIN_S = 600, 5
TTFT_S = 900
MOST_EVENTS = 5_000  # the latest of them, for percentiles
WIDE, HIGH = 120.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRow:
    """One coordinator in the last WINDOW_S. Shares in %; None where nothing is known.

    supply : tokens per minute that its bubbles take by the predicted schedule, of prompts of the length that
        `Watched.served` names.
    before, after : utilization of the data centre's GPUs by training, and with prefill.
    waited_ms : that training ops waited for chunks, over its GPUs.  guard_ms : of the GPU that needs most.
    """

    coordinator: PrefillCoordinator
    word: str
    shape: str
    accepted: int
    refused: list[tuple[str, int, str]]
    delivered: int
    failed: dict[str, int]
    missed: int
    waiting: int | None
    supply: float | None
    before: float | None
    after: float | None
    slowdown: float | None
    waited_ms: float
    guard_ms: float | None

    @property
    def refused_count(self) -> int:
        return sum(count for _, count, _ in self.refused)

    @property
    def broken_off(self) -> int:
        return sum(self.failed.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ttft:
    """Of delivered requests with an objective in the last TTFT_S: ms, and how many came after it."""

    requests: int
    p50: float
    p95: float
    p99: float
    objective: str
    missed: int

    @property
    def missed_share(self) -> float:
        return 100 * self.missed / self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Requests in bins of BIN_S: bars of an SVG of WIDE × HIGH, (x, y, height) of accepted and refused."""

    accepted: list[tuple[float, float, float]]
    refused: list[tuple[float, float, float]]
    top: float  # requests a second
    width: float = WIDE
    height: float = HIGH
    bar: float = WIDE * BIN_S / CHART_S - 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The page: all coordinators that are open or were in the last WINDOW_S, those of `run` first."""

    rows: list[CoordinatorRow]
    served: list[ServedModel]
    ttft: Ttft | None
    rates: Rates | None
    run: Run | None
    runs: list[Run]

    def total(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.rows)

    @property
    def accepted(self) -> int:
        return self.total("accepted")

    @property
    def refused(self) -> int:
        return self.total("refused_count")

    @property
    def accepted_share(self) -> float | None:
        offered = self.accepted + self.refused
        return 100 * self.accepted / offered if offered else None

    @property
    def waiting(self) -> int:
        return sum(row.waiting or 0 for row in self.rows)

    @property
    def reasons(self) -> list[tuple[str, int, str]]:
        """(reason, requests, in words), the most frequent first."""
        return _in_words(merged({code: n for code, n, _ in row.refused} for row in self.rows))

    @property
    def before(self) -> float | None:
        return _mean([row.before for row in self.rows])

    @property
    def after(self) -> float | None:
        return _mean([row.after for row in self.rows])

    @property
    def filled(self) -> float | None:
        """What prefill adds to the utilization."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def waited_ms(self) -> float:
        """What training ops waited for chunks, over all GPUs."""
        return sum(row.waited_ms for row in self.rows)

    @property
    def slowdown(self) -> float | None:
        """The worst, in %."""
        return max((row.slowdown for row in self.rows if row.slowdown is not None), default=None)


def watched(user: Any, run_id: int | None) -> Watched:
    """What `user`, who operates teams, may watch.

    The run `run_id`, or the newest with a prefill coordinator, is drawn.
    """
    coordinators = list(_coordinators(user))
    runs = list({coordinator.run_id: coordinator.run for coordinator in coordinators}.values())
    run = next((one for one in runs if one.pk == run_id), runs[0] if runs else None)
    since = time.time() - CHART_S
    seconds: dict[tuple[int, int], list[PrefillSecond]] = defaultdict(list)
    for row in PrefillSecond.objects.filter(run__in=runs, t__gte=since).order_by("t"):
        seconds[row.run_id, row.dc_id].append(row)
    usage = usages(runs)
    served = served_now(Team.objects.with_role(user, OPERATORS))
    rates = {(one.model, *key): rate for one in served for key, rate in one.rates.items()}
    rows = [
        _row(
            coordinator,
            seconds[coordinator.run_id, coordinator.dc_id],
            usage[coordinator.run_id],
            rates.get((coordinator.model, coordinator.run_id, coordinator.dc_id)),
        )
        for coordinator in coordinators
    ]
    return Watched(
        rows=rows,
        served=served,
        ttft=_ttft(user, coordinators),
        rates=_rates([s for part in seconds.values() for s in part]),
        run=run,
        runs=runs,
    )


def _coordinators(user: Any) -> Any:
    teams = Team.objects.with_role(user, OPERATORS)
    lately = timezone.now() - timedelta(seconds=WINDOW_S)
    rows = PrefillCoordinator.objects.visible_to(user).filter(run__job__team__in=teams, heard_at__gte=lately)
    rows = rows.filter(run__status__in=(Status.RUNNING, Status.STOPPING))
    rows = rows.select_related("run__job", "dc").defer("run__result", "run__job__plan_copy")
    return rows.order_by("-run__created_at", "-run", "dc__name")[:MOST_RUNS]


def _row(
    coordinator: PrefillCoordinator,
    seconds: Sequence[PrefillSecond],
    usage: dict[str, Any] | None,
    supply: float | None,
) -> CoordinatorRow:
    lately = [row for row in seconds if row.t >= time.time() - WINDOW_S]
    last = lately[-1] if lately else None
    before = _utilization(coordinator, usage)
    gpu_ms = sum(row.gpus * row.window_s for row in lately) * 1e3
    fill_percent = 100 * sum(row.prefill_ms for row in lately) / gpu_ms if gpu_ms else None
    word, shape = _state(coordinator, last)
    return CoordinatorRow(
        coordinator=coordinator,
        word=word,
        shape=shape,
        waiting=last.waiting if last else None,
        supply=supply,
        accepted=sum(row.accepted for row in lately),
        delivered=sum(row.delivered for row in lately),
        missed=sum(row.missed for row in lately),
        refused=_in_words(merged(row.refused for row in lately)),
        failed=merged(row.failed for row in lately),
        before=before,
        after=None if before is None or fill_percent is None else min(100.0, before + fill_percent),
        slowdown=None if last is None or last.slowdown is None else 100 * last.slowdown,
        waited_ms=sum(row.waited_ms for row in lately),
        guard_ms=last.guard_ms if last else None,
    )


def _state(coordinator: PrefillCoordinator, last: PrefillSecond | None) -> tuple[str, str]:
    """In a word, and the state whose colour it has. Open and paused ones alone are handed prompts."""
    if coordinator.state == CoordinatorState.CLOSED:
        return "Closed", "cancelled"
    if coordinator.is_silent:
        return "Silent", "silent"
    if coordinator.run.status == Status.STOPPING:
        return "Stopping", "stopping"
    if last is not None and last.paused:
        return "Paused", "stopping"
    return "Open", "running"


def _utilization(coordinator: PrefillCoordinator, usage: dict[str, Any] | None) -> float | None:
    names = [datacenter_name(name) for name in shape_of(coordinator.run.job.document).dcs]
    if usage is None or coordinator.dc.name not in names:
        return None
    return 100.0 * float(usage["dcs"][names.index(coordinator.dc.name)]["utilization"])


def _ttft(user: Any, coordinators: Sequence[PrefillCoordinator]) -> Ttft | None:
    events = UsageEvent.objects.visible_to(user).filter(
        at__gte=timezone.now() - timedelta(seconds=TTFT_S),
        outcome=Outcome.DELIVERED,
        ttft_objective_ms__isnull=False,
        dc__in={coordinator.dc_id for coordinator in coordinators},
        tenancy__model__in={coordinator.model for coordinator in coordinators},
    )
    pairs: list[Any] = list(events.order_by("-at").values_list("ttft_ms", "ttft_objective_ms")[:MOST_EVENTS])
    if not pairs:
        return None
    times = np.array([ttft for ttft, _ in pairs])
    p50, p95, p99 = np.quantile(times, (0.5, 0.95, 0.99))
    least, most = min(o for _, o in pairs), max(o for _, o in pairs)
    return Ttft(
        requests=len(pairs),
        p50=float(p50),
        p95=float(p95),
        p99=float(p99),
        objective=f"{least:,}" if least == most else f"{least:,} to {most:,}",
        missed=sum(ttft > objective for ttft, objective in pairs),
    )


def _rates(seconds: Sequence[PrefillSecond]) -> Rates | None:
    if not seconds:
        return None
    bins = CHART_S // BIN_S
    end = (int(time.time()) // BIN_S + 1) * BIN_S
    counts = np.zeros((2, bins))
    for row in seconds:
        at = min(bins - 1, bins - 1 - int((end - row.t) // BIN_S))  # a node's clock may be a little ahead
        if at >= 0:
            counts[:, at] += (row.accepted, sum(row.refused.values()))
    top = max(1.0, float(counts.sum(axis=0).max()))
    high = counts / top * HIGH
    x = [round(i * WIDE / bins, 2) for i in range(bins)]
    return Rates(
        accepted=[(x[i], round(HIGH - high[0, i], 2), round(high[0, i], 2)) for i in range(bins)],
        refused=[(x[i], round(HIGH - high[:, i].sum(), 2), round(high[1, i], 2)) for i in range(bins)],
        top=top / BIN_S,
    )


def _in_words(reasons: dict[str, int]) -> list[tuple[str, int, str]]:
    by_count = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(reason, count, WHY.get(reason, "")) for reason, count in by_count]


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
