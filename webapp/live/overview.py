"""The overview: data centres, links and what goes over them, runs, and what needs attention."""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from webapp import health
from webapp.inventory.models import DataCenter, Node, NodeState, WanLink
from webapp.inventory.selectors import datacenter_name
from webapp.jobs.allocate import dc_names
from webapp.jobs.models import RANK_OVER, RankState, Run, Status
from webapp.live.models import IterationStat
from webapp.live.selectors import run_usage
from webapp.live.shape import shape_of

MOST_RUNS = 12
HISTORY = 120
Usages = dict[int, dict[str, Any] | None]


def context(user: Any) -> dict[str, Any]:
    """The context of overview.html."""
    runs = list(_runs(user))
    usages = {run.pk: run_usage(run, shape_of(run.job.document)) for run in runs if not run.is_over}
    nodes = list(Node.objects.visible_to(user).select_related("dc", "pool").defer("seen_ranks"))
    dcs = _datacenters(user, nodes)
    links = _links(user, dcs, runs, usages)
    return {
        "dcs": dcs,
        "links": links,
        "runs": [_run(run, usages.get(run.pk)) for run in runs],
        "attention": [*_disk(), *_silent(nodes), *_stuck(user), *_failed(runs)],
        "totals": _totals(dcs, links, nodes, usages),
        "now": timezone.now(),
        "overview_json": {"dcs": dcs, "links": links},
    }


def _runs(user: Any) -> Iterable[Run]:
    """Open runs first, then those that ended last."""
    visible = Run.objects.visible_to(user).select_related("job").defer("result", "job__plan_copy")
    opened = list(visible.open()[:MOST_RUNS])
    return opened + list(
        visible.exclude(pk__in=[run.pk for run in opened]).order_by("-finished_at")[
            : max(0, MOST_RUNS - len(opened))
        ]
    )


def _datacenters(user: Any, nodes: list[Node]) -> list[dict[str, Any]]:
    busy: dict[int, int] = defaultdict(int)
    cost: dict[int, float] = defaultdict(float)
    price_of = {node.pk: float(node.pool.price_per_gpu_hour) for node in nodes}
    held = RankState.objects.filter(node__in=nodes).exclude(state__in=RANK_OVER)
    for dc_id, node_id in held.values_list("dc_id", "node_id"):
        busy[dc_id] += 1
        cost[dc_id] += price_of[node_id]
    by_dc: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        by_dc[node.dc_id].append(node)
    made = []
    for dc in DataCenter.objects.visible_to(user).prefetch_related("pools"):
        prices = [float(pool.price_per_gpu_hour) for pool in dc.pools.all()]
        own = by_dc[dc.pk]
        gpus = sum(node.gpus for node in own)
        silent = sum(node.gpus for node in own if node.state != NodeState.ONLINE)
        used = min(busy[dc.pk], gpus)
        made.append(
            {
                "id": dc.pk,
                "name": dc.name,
                "place": dc.place,
                "gpus": gpus,
                "busy": used,
                "silent": silent,
                "idle": max(0, gpus - used - silent),
                "nodes": len(own),
                "latitude": dc.latitude,
                "longitude": dc.longitude,
                "price": min(prices, default=None),
                "price_to": max(prices, default=None),
                "cost_per_hour": cost[dc.pk],
                "url": reverse("inventory:datacenter-detail", args=[dc.pk]),
            }
        )
    return made


def _links(user: Any, dcs: list[dict[str, Any]], runs: list[Run], usages: Usages) -> list[dict[str, Any]]:
    place = {dc["id"]: index for index, dc in enumerate(dcs)}
    carried: dict[frozenset[str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        shape, usage = shape_of(run.job.document), usages.get(run.pk)
        for link in usage["links"] if usage else ():
            ends = frozenset(datacenter_name(shape.dcs[link[end]]) for end in ("from", "to"))
            carried[ends].append(link)
    made = []
    for link in WanLink.objects.visible_to(user).select_related("a", "b"):
        now = carried[frozenset((link.a.name, link.b.name))]
        made.append(
            {
                "id": link.pk,
                "url": reverse("inventory:link-detail", args=[link.pk]),
                "a": link.a.name,
                "b": link.b.name,
                "from": place[link.a_id],
                "to": place[link.b_id],
                "latency_ms": link.latency_ms,
                "bandwidth_gbps": link.bandwidth_gbps,
                "gbps": sum(entry["mean_gbps"] for entry in now) if now else None,
                "busy": max((entry["busy"] for entry in now), default=0.0),
            }
        )
    return made


def _run(run: Run, usage: dict[str, Any] | None) -> dict[str, Any]:
    predicted = run.predicted.get("iteration_ms")
    measured = usage["iteration_ms"] if usage else None
    stats = list(
        IterationStat.objects.filter(run=run, utilization__isnull=False)
        .order_by("-iteration")
        .values_list("utilization", flat=True)[:HISTORY]
    )
    loss = (
        IterationStat.objects.filter(run=run, loss__isnull=False)
        .order_by("-iteration")
        .values_list("loss", flat=True)
        .first()
    )
    left = (run.steps - run.iteration - 1) * measured / 1e3 if measured and not run.is_over else None
    return {
        "id": run.pk,
        "name": str(run.job.name),
        "url": reverse("jobs:run-detail", args=[run.pk]),
        "status": run.status,
        "status_label": run.status_label,
        "reason": run.waits_for or run.status_reason,
        "where": ", ".join(dict.fromkeys(dc_names(run.job.document))),
        "gpus": shape_of(run.job.document).ranks,
        "iteration": run.iteration,
        "steps": run.steps,
        "measured_ms": measured,
        "predicted_ms": predicted,
        "off_by": measured / predicted - 1 if measured and predicted else None,
        "utilization": usage["run"]["utilization"] if usage else None,
        "loss": loss,
        "left_s": left,
        "history": stats[::-1],
    }


def _disk() -> Iterable[dict[str, Any]]:
    """Said while pages can still be read: a full disk stops the servers."""
    check = health.disk()
    if not check.ok:
        yield {
            "level": "error",
            "title": f"Disk nearly full: {check.detail}",
            "text": "Full, it stops PostgreSQL and Valkey. Ranks train on; their reports wait for room.",
            "url": "",
        }


def _silent(nodes: list[Node]) -> Iterable[dict[str, Any]]:
    for node in nodes:
        if node.state == NodeState.SILENT and node.last_seen:
            quiet = time.time() - node.last_seen.timestamp()
            yield {
                "level": "error",
                "title": f"Node {node.name} silent for {quiet:,.0f} s",
                "action": "Open node",
                "text": f"{node.gpus} GPUs in {node.dc.name}.",
                "url": reverse("inventory:node-detail", args=[node.pk]),
            }


def _stuck(user: Any) -> Iterable[dict[str, Any]]:
    """Runs that wait for something that does not come by itself; an alarm once they have waited for long."""
    stuck = Run.objects.visible_to(user).open().filter(needs_action=True).for_lists()
    for run in stuck.order_by("status_since")[:MOST_RUNS]:
        minutes = (timezone.now() - run.status_since).total_seconds() / 60
        late = minutes >= settings.PENDING_ALARM_MIN
        yield {
            "level": "error" if late else "warn",
            "title": f"{run.job.name} waits{f' for {minutes:,.0f} min' if late else ''}",
            "text": f"{run.waits_for}.{' This does not go away by itself.' if late else ''}",
            "url": reverse("jobs:run-detail", args=[run.pk]),
            "action": "Open run",
        }


def _failed(runs: list[Run]) -> Iterable[dict[str, Any]]:
    for run in runs:
        if run.status == Status.FAILED and run.finished_at and (timezone.now() - run.finished_at).days < 1:
            yield {
                "level": "error",
                "title": f"{run} failed",
                "text": run.status_reason,
                "url": reverse("jobs:run-detail", args=[run.pk]),
                "action": "Open run",
            }


def _totals(
    dcs: list[dict[str, Any]], links: list[dict[str, Any]], nodes: list[Node], usages: Usages
) -> dict[str, Any]:
    shares = [usage["run"]["utilization"] * len(usage["lanes"]) for usage in usages.values() if usage]
    gpus = sum(dc["gpus"] for dc in dcs)
    return {
        "gpus": gpus,
        "gpus_online": gpus - sum(dc["silent"] for dc in dcs),
        "busy": sum(dc["busy"] for dc in dcs),
        "nodes": len(nodes),
        "nodes_silent": sum(node.state == NodeState.SILENT for node in nodes),
        "nodes_never": sum(node.state == NodeState.NEVER for node in nodes),
        "utilization": sum(shares) / gpus if gpus and shares else None,
        "wan_gbps": sum(link["gbps"] or 0.0 for link in links),
        "wan_cap_gbps": sum(link["bandwidth_gbps"] for link in links),
        "cost_per_hour": sum(dc["cost_per_hour"] for dc in dcs),
    }
