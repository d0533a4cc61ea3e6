"""Incidents of a run, failures and re-plans, and what each cost, as its page lists them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from webapp.jobs.incidents import FROM, Cost
from webapp.jobs.models import Run, RunEvent
from webapp.live.models import IterationStat

MOST_ROWS = 100


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
    losses_s = [seconds for seconds in lost.values() if seconds is not None]
    lost_s = sum(losses_s) if losses_s or not marks else None
    return Incidents(
        rows=[_row(mark, lost[mark.seq], runs) for mark in marks[:MOST_ROWS]],
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


def _row(mark: RunEvent, lost_s: float | None, runs: dict[int, Run]) -> Incident:
    cost = mark.cost
    silent = cost.get("silent_s")
    noticed = "" if silent is None else f"after {silent:.1f} s of silence" if silent else "at once"
    return Incident(
        at=mark.at,
        what=cost["what"],
        noticed=noticed,
        lost_s=lost_s,
        again=cost.get("again"),
        went_on=_WENT_ON[cost["kind"]](cost),
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


def _failed(cost: Cost) -> str:
    if cost["saved"] is None:
        return "it failed without a checkpoint"
    return f"it failed; Resume continues after iteration {cost['saved']:,}"


def _moved(cost: Cost) -> str:
    return FROM[cost["from"]]


_WENT_ON = {"recovery": _recovered, "adaptation": _adapted, "failure": _failed, "move": _moved}
