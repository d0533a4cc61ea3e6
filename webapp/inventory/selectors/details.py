"""What the inventory's detail pages show."""

import math
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone

from engine.cluster import tcp
from engine.cluster.regions import countries, distance_km, least_latency_ms
from webapp.accounts.permissions import may
from webapp.common.lists import bound_table
from webapp.inventory.catalogue import position, position_text
from webapp.inventory.models import DataCenter, GpuPool, LinkTrial, WanLink
from webapp.inventory.node_tables import NodeTable
from webapp.inventory.selectors.history import link_charts, values_in_use
from webapp.inventory.selectors.nodes import nodes_for_lists, probes_over, told_probes
from webapp.inventory.selectors.use import Use, gpu_use
from webapp.inventory.services import team_of
from webapp.inventory.tables import LinkTable, MeasurementTable, PoolTable

MOST_PROBES = 12  # pairs of nodes on the page of a link


def detail_context(request: HttpRequest, thing: DataCenter | WanLink) -> dict[str, Any]:
    """The context of the detail page of `thing`."""
    context: dict[str, Any] = {"may_operate": may(request.user, team_of(thing))}
    if isinstance(thing, DataCenter):
        return context | _datacenter(request, thing)
    return context | _link(request, thing)


def _datacenter(request: HttpRequest, dc: DataCenter) -> dict[str, Any]:
    links = WanLink.objects.visible_to(request.user).filter(Q(a=dc) | Q(b=dc))
    links = links.select_related("a", "b", "latency_from", "bandwidth_from")
    nodes = nodes_for_lists().visible_to(request.user).filter(dc=dc)
    pools = GpuPool.objects.visible_to(request.user).filter(dc=dc).select_related("dc").with_counts()
    use = gpu_use([dc.pk]).get(dc.pk, Use())
    return {
        "datacenter": dc,
        "country": countries().get(dc.country, dc.country),
        "local_time": timezone.now().astimezone(ZoneInfo(dc.time_zone)) if dc.time_zone else None,
        "use": use,
        "position": position_text(dc),
        "pools": bound_table(request, PoolTable, pools, prefix="pools-"),
        "nodes": bound_table(request, NodeTable, nodes, prefix="nodes-", exclude=("dc",)),
        "links": bound_table(request, LinkTable, links, prefix="links-"),
    }


def _link(request: HttpRequest, link: WanLink) -> dict[str, Any]:
    here, there = position(link.a), position(link.b)
    least_ms = least_latency_ms(here, there) if here and there else None
    history = link.measurements.select_related("actor")
    probes = probes_over(request.user, link)
    return {
        "link": link,
        "tcp": tcp_figures(link),
        "in_use": values_in_use(link),
        "trial": last_trial(link),
        "probes": probes[:MOST_PROBES],
        "unshown_probes": max(0, len(probes) - MOST_PROBES),
        "probing": any(row.is_waiting for row in probes),
        "reached": told_probes(probes),
        "least_ms": least_ms,
        "too_fast": least_ms is not None and link.latency_ms < least_ms,
        "distance_km": distance_km(here, there) if here and there else None,
        "charts": link_charts(link),
        "history": bound_table(request, MeasurementTable, history, prefix="history-"),
    }


def last_trial(link: WanLink) -> LinkTrial | None:
    """The last time that somebody had the rate of `link` measured."""
    return link.trials.select_related("source", "target", "asked_by").first()


def tcp_figures(link: WanLink) -> dict[str, Any]:
    """What one TCP connection carries on `link` in Gbit/s (None: no limit), and how many fill it."""
    single = tcp.single_connection(link.latency_ms / 1000)
    needed = tcp.connections_needed(link.bandwidth_gbps * 1e9 / 8, single)
    return {"single_gbps": None if math.isinf(single) else single * 8 / 1e9, "connections_needed": needed}
