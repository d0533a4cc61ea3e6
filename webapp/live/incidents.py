"""Incidents of a run, failures and re-plans, and what each cost, as its page lists them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from webapp.jobs.incidents import FROM, Cost
from webapp.jobs.models import Run, RunEvent
from webapp.live.models import IterationStat

MOST_ROWS = 100
NEW_PLANS = ("adaptation", "layout")  # kinds of incidents after which iterations are to be faster
BEFORE, MOST_AFTER = 3, 20  # iterations whose times are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A row of the table. noticed: in words. lost_s, again: None where there is nothing to say.

    went_on : from where it went on, in words; `to` is the run that took its place.
    """

    at: datetime
    what: str
    noticed: str
    lost_s: float | None
    again: int | None
    went_on: str
    to: Run | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incidents:
    """The last MOST_ROWS, the latest first, and what all `count` of them cost.

    lost_s : None where no incident has a time.
    share : of the run's time so far that was lost.
    """

    rows: Sequence[Incident]
    count: int
    lost_s: float | None
    again: int
    share: float | None


def incidents_of(run: Run) -> Incidents:
    """Incidents of `run` so far."""
    marks = list(RunEvent.objects.filter(run=run).exclude(cost={}).order_by("-seq"))
    moved = {mark.cost["to"] for mark in marks if mark.cost["kind"] == "move"}
    runs = {new.pk: new for new in Run.objects.filter(pk__in=moved).for_lists()} if moved else {}
    lost = {mark.seq: _lost_s(run, mark.cost, runs) for mark in marks}
    took = _measured(run, [mark.cost for mark in marks[:MOST_ROWS]])
    losses_s = [seconds for seconds in lost.values() if seconds is not None]
    lost_s = sum(losses_s) if losses_s or not marks else None
    return Incidents(
        rows=[
            _row(mark, lost[mark.seq], runs, measured)
            for mark, measured in zip(marks[:MOST_ROWS], took, strict=True)
        ],
        count=len(marks),
        lost_s=lost_s,
        again=sum(mark.cost.get("again", 0) for mark in marks),
        share=None if lost_s is None else _share(run, lost_s),
    )


def _lost_s(run: Run, cost: Cost, runs: dict[int, Run]) -> float | None:
    """A move's: from the end of the last iteration that counts until the ranks of the new run all ran."""
    if cost["kind"] != "move":
        return cost.get("lost_s")
    new = runs.get(cost["to"])
    if new is None or new.started_at is None:
        return None
    last = run.done - cost["again"] - 1
    ended = IterationStat.objects.filter(run=run, iteration=last).values_list("end", flat=True).first()
    since = datetime.fromtimestamp(ended, UTC) if ended else run.started_at
    return (new.started_at - since).total_seconds() if since else None


def _share(run: Run, lost_s: float) -> float | None:
    if run.started_at is None:
        return None
    whole = ((run.finished_at or datetime.now(UTC)) - run.started_at).total_seconds()
    return min(1.0, lost_s / whole) if whole > 0 else None


def _measured(run: Run, costs: Sequence[Cost]) -> list[str]:
    """Of incidents, the latest first: what an iteration really took before and after a new plan, in words.

    Empty where there is no new plan, or nothing to compare. Medians of the iterations just before it, which
    were as slow as it was made for, and of those since, up to the next incident.
    """
    windows = _windows(costs)
    wanted = {i for window in windows if window for i in range(window.start - BEFORE - 1, window.stop)}
    stats = (
        IterationStat.objects.filter(run=run, iteration__in=wanted).only("iteration", "end") if wanted else ()
    )
    ended = {stat.iteration: stat.end for stat in stats if stat.end is not None}
    took_ms = {i: 1e3 * (end - ended[i - 1]) for i, end in ended.items() if i - 1 in ended}

    def median_ms(first: int, end: int) -> float | None:
        times_ms = [took_ms[i] for i in range(first, end) if i in took_ms]
        return median(times_ms) if times_ms else None

    def said(window: range | None) -> str:
        if window is None:
            return ""
        # Not of the iteration of the change itself, which has the change in it.
        before = median_ms(window.start - BEFORE, window.start)
        after = median_ms(window.start + 1, window.stop)
        if before is None or after is None:
            return ""
        return f"; measured {before:,.0f} ms before and {after:,.0f} ms since"

    return [said(window) for window in windows]


def _windows(costs: Sequence[Cost]) -> list[range | None]:
    """Of incidents, the latest first: the iterations with the new plan; None where there is none."""
    windows: list[range | None] = []
    until: int | None = None  # where the incident after this one begins
    for cost in costs:
        begin = cost.get("iteration")
        planned = cost["kind"] in NEW_PLANS and cost.get("replanned", True)
        if begin is None or not planned:
            windows.append(None)
        else:
            most = begin + 1 + MOST_AFTER
            windows.append(range(begin, most if until is None else min(most, until)))
        until = begin if begin is not None else until
    return windows


def _row(mark: RunEvent, lost_s: float | None, runs: dict[int, Run], measured: str) -> Incident:
    cost = mark.cost
    silent = cost.get("silent_s")
    noticed = "" if silent is None else f"after {silent:.1f} s of silence" if silent else "at once"
    return Incident(
        at=mark.at,
        what=cost["what"],
        noticed=noticed,
        lost_s=lost_s,
        again=cost.get("again"),
        went_on=_WENT_ON[cost["kind"]](cost) + measured,
        to=runs.get(cost.get("to", 0)),
    )


def _recovered(cost: Cost) -> str:
    fewer = "on {} of {} GPUs, ".format(*cost["gpus"]) if "gpus" in cost else ""
    return f"with iteration {cost['iteration'] + 1:,}, {fewer}{FROM[cost['from']]}"


def _adapted(cost: Cost) -> str:
    before, after = (f"{cost[name]:,.0f} ms" for name in ("before_ms", "after_ms"))
    if not cost["replanned"]:
        return f"with the same schedule, as none is better; an iteration should now take {before}"
    how = f"an iteration should now take {after} instead of {before}"
    return f"with another schedule from iteration {cost['iteration'] + 1:,}: {how}"


def _laid_out(cost: Cost) -> str:
    before, after = (f"{cost[name]:,.0f} ms" for name in ("before_ms", "after_ms"))
    how = f"an iteration should now take {after} instead of {before}"
    new = f", with {cost['joined']} from the reserve" if cost.get("joined") else ""
    return f"with another layout from iteration {cost['iteration'] + 1:,}, {cost['layout']}{new}: {how}"


def _failed(cost: Cost) -> str:
    if cost["saved"] is None:
        return "it failed without a checkpoint"
    return f"it failed; Resume continues after iteration {cost['saved']:,}"


def _moved(cost: Cost) -> str:
    return FROM[cost["from"]]


_WENT_ON = {
    "recovery": _recovered,
    "adaptation": _adapted,
    "layout": _laid_out,
    "failure": _failed,
    "move": _moved,
}
