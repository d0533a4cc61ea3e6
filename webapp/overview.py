"""The overview: data centres, links and what goes over them, runs, and what needs attention.

What it costs does not grow with the number of data centres, nodes or runs: the database counts, and what is
shown is the part with most going on.
"""

from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Count, OuterRef, Subquery, Sum
from django.urls import reverse
from django.utils import timezone

from engine.job.locations import gpus_needed
from webapp.accounts.models import Team
from webapp.attention import attention
from webapp.inventory.models import DataCenter, WanLink
from webapp.inventory.selectors.use import Use, gpu_use, together
from webapp.inventory.selectors.worldmap import WorldMap, drawing
from webapp.jobs.models import Run, RunState
from webapp.live.flows import MOST_RUNS, Ends, flows
from webapp.live.models import IterationStat
from webapp.live.selectors import usages
from webapp.prefill.offers import served_now

HISTORY = 120
MOST_DATACENTERS = 24  # in the table; the list has them all
MOST_DRAWN = 10
MAP_WIDE, MAP_HIGH = 860.0, 380.0


def context(user: Any) -> dict[str, Any]:
    """The context of overview.html."""
    runs = _runs(user)
    usage_by_run = usages([run for run in runs if not run.is_over])
    visible = DataCenter.objects.visible_to(user)
    uses = gpu_use(visible.order_by().values("pk"))
    whole = together(uses.values())
    names = dict(visible.order_by().values_list("pk", "name"))
    largest = _largest(names, uses)
    carried = flows(runs, usage_by_run)
    return {
        "dc_count": len(names),
        "largest": sorted((_datacenter(dc, uses) for dc in largest), key=lambda entry: entry["name"]),
        "map": _map(largest[:MOST_DRAWN], uses, carried, len(names)),
        "runs": [_run(run, usage_by_run.get(run.pk)) for run in runs],
        "totals": _totals(user, whole, carried, usage_by_run),
        "served": served_now(Team.objects.visible_to(user)),
        **_states(user),
        **attention(user, whole, runs),
        "now": timezone.now(),
    }


def _runs(user: Any) -> list[Run]:
    """Open runs first, then those that ended last; with the utilization and the last loss of each."""
    stats = IterationStat.objects.filter(run=OuterRef("pk")).order_by("-iteration")
    busy = stats.filter(utilization__isnull=False).values("utilization")[:HISTORY]
    loss = stats.filter(loss__isnull=False).values("loss")[:1]
    rows = Run.objects.visible_to(user).current().select_related("job")
    visible = rows.defer("result", "job__plan_copy")
    visible = visible.annotate(history=ArraySubquery(busy), loss=Subquery(loss))
    opened = list(visible.open()[:MOST_RUNS])
    over = visible.exclude(pk__in=[run.pk for run in opened]).order_by("-finished_at")
    return [*opened, *over[:MOST_RUNS]][:MOST_RUNS]


def _largest(names: dict[int, str], uses: dict[int, Use]) -> list[DataCenter]:
    """The data centres with most going on, the busiest first."""

    def key(pk: int) -> tuple[int, int, int, str]:
        use = uses.get(pk, Use())
        return -use.busy, -use.silent, -use.gpus, names[pk]

    chosen = sorted(names, key=key)[:MOST_DATACENTERS]
    dcs = DataCenter.objects.in_bulk(chosen)
    return [dcs[pk] for pk in chosen]


def _datacenter(dc: DataCenter, uses: dict[int, Use]) -> dict[str, Any]:
    use = uses.get(dc.pk, Use())
    return {
        "name": dc.name,
        "place": dc.place,
        "gpus": use.gpus,
        "busy": use.busy,
        "silent": use.silent,
        "never": use.never,
        "idle": use.idle,
        "nodes": use.nodes,
        # Of a GPU hour, on average where its pools differ.
        "price": use.whole_cost_per_hour / use.gpus if use.gpus else None,
        "url": reverse("inventory:datacenter-detail", args=[dc.pk]),
    }


def _map(dcs: list[DataCenter], uses: dict[int, Use], carried: dict[Ends, float], of: int) -> WorldMap:
    between = WanLink.objects.filter(a__in=dcs, b__in=dcs).select_related("a", "b").order_by("pk")
    return drawing(dcs, list(between), uses, of=of, flows=carried, wide=MAP_WIDE, high=MAP_HIGH)


def _run(run: Any, usage: dict[str, Any] | None) -> dict[str, Any]:
    predicted = run.predicted.get("iteration_ms")
    measured = usage["iteration_ms"] if usage else None
    left = (run.steps - run.iteration - 1) * measured / 1e3 if measured and not run.is_over else None
    return {
        "id": run.pk,
        "name": str(run.job.name),
        "url": reverse("jobs:run-detail", args=[run.pk]),
        "state": run.state,
        "reason": run.reason,
        "where": ", ".join(gpus_needed(run.job.document)),
        "gpus": sum(gpus_needed(run.job.document).values()),
        "iteration": run.iteration,
        "steps": run.steps,
        "measured_ms": measured,
        "predicted_ms": predicted,
        "off_by": measured / predicted - 1 if measured and predicted else None,
        "utilization": usage["run"]["utilization"] if usage else None,
        "loss": run.loss,
        "left_s": left,
        "history": run.history[::-1],
    }


def _states(user: Any) -> dict[str, Any]:
    """How many open runs stand in each state, in order: all of them, not those alone that the page lists."""
    rows = Run.objects.visible_to(user).open().with_state().order_by()
    counts = dict(rows.values_list("shown_state").annotate(Count("pk")))
    states = [(state, counts[state]) for state in RunState if state in counts]
    return {
        "states": states,
        "running": counts.get(RunState.RUNNING, 0),
        "waiting": counts.get(RunState.WAITING, 0),
    }


def _totals(
    user: Any, whole: Use, carried: dict[Ends, float], usage_by_run: dict[int, dict[str, Any] | None]
) -> dict[str, Any]:
    shares = [usage["run"]["utilization"] * len(usage["lanes"]) for usage in usage_by_run.values() if usage]
    links = WanLink.objects.visible_to(user).aggregate(
        count=Count("pk"), cap_gbps=Sum("bandwidth_gbps", default=0.0)
    )
    return {
        "gpus": whole.gpus,
        "gpus_online": whole.gpus - whole.away,
        "busy": whole.busy,
        "idle": whole.idle,
        "nodes": whole.nodes,
        "nodes_silent": whole.nodes_silent,
        "nodes_never": whole.nodes_never,
        "utilization": sum(shares) / whole.gpus if whole.gpus and shares else None,
        "links": links["count"],
        "wan_gbps": sum(carried.values()),
        "wan_cap_gbps": links["cap_gbps"],
        "cost_per_hour": whole.cost_per_hour,
        "cost_if_all_busy": whole.whole_cost_per_hour,
    }
