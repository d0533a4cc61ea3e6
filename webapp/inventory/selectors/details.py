"""What the inventory's detail pages show."""

import math
from typing import Any

from django.db.models import Q
from django.http import HttpRequest

from engine.cluster import tcp
from webapp.accounts.permissions import may
from webapp.inventory.models import DataCenter, GpuPool, Node, WanLink
from webapp.inventory.services import team_of
from webapp.inventory.tables import LinkTable, NodeTable, PoolTable
from webapp.lists import bound_table


def detail_context(request: HttpRequest, thing: DataCenter | Node | WanLink) -> dict[str, Any]:
    """The context of the detail page of `thing`."""
    context: dict[str, Any] = {"may_operate": may(request.user, team_of(thing))}
    if isinstance(thing, DataCenter):
        return context | _datacenter(request, thing)
    return context | (_node(thing) if isinstance(thing, Node) else _link(request, thing))


def _datacenter(request: HttpRequest, dc: DataCenter) -> dict[str, Any]:
    links = WanLink.objects.visible_to(request.user).filter(Q(a=dc) | Q(b=dc)).select_related("a", "b")
    nodes = Node.objects.visible_to(request.user).filter(dc=dc).select_related("dc").defer("seen_ranks")
    pools = GpuPool.objects.visible_to(request.user).filter(dc=dc).with_counts()
    return {
        "datacenter": dc,
        "pools": bound_table(request, PoolTable, pools, prefix="pools-"),
        "nodes": bound_table(request, NodeTable, nodes, prefix="nodes-", exclude=("dc",)),
        "links": bound_table(request, LinkTable, links, prefix="links-"),
        "runs": _runs(request, Q(ranks__dc=dc)),
    }


def _node(node: Node) -> dict[str, Any]:
    from webapp.jobs.models import HOLDING

    ranks = node.ranks.filter(run__status__in=HOLDING).select_related("run__job").order_by("gpu")
    return {"node": node, "ranks": ranks, "credentials": None}


def _link(request: HttpRequest, link: WanLink) -> dict[str, Any]:
    both = Q(ranks__dc=link.a_id) & Q(pk__in=_run_ids(link.b_id))
    return {"link": link, "tcp": tcp_figures(link), "runs": _runs(request, both)}


def tcp_figures(link: WanLink) -> dict[str, Any]:
    """What one TCP connection carries on `link` in Gbit/s (None: no limit), and how many fill it."""
    single = tcp.single_connection(link.latency_ms / 1000)
    needed = tcp.connections_needed(link.bandwidth_gbps * 1e9 / 8, single)
    return {"single_gbps": None if math.isinf(single) else single * 8 / 1e9, "connections_needed": needed}


def _run_ids(dc_id: int) -> Any:
    from webapp.jobs.models import RankState

    return RankState.objects.filter(dc_id=dc_id).values("run")


def _runs(request: HttpRequest, where: Q) -> Any:
    from webapp.jobs.models import Run
    from webapp.jobs.tables import RunTable

    runs = Run.objects.visible_to(request.user).for_lists().filter(where).distinct()
    return bound_table(request, RunTable, runs, prefix="runs-")
