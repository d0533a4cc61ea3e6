"""Data centres with what lists show of them, counted by the database."""

from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Aggregate, Count, Exists, IntegerField, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest

from webapp.inventory.models import DataCenter, GpuPool, Node, NodeState, Thing, WanLink


def visible_dcs(request: HttpRequest | None) -> QuerySet[DataCenter]:
    """What the reader of a filter may choose from; none without a request."""
    return DataCenter.objects.visible_to(request.user) if request else DataCenter.objects.none()


def datacenters_for_lists() -> QuerySet[DataCenter]:
    """With `node_count`, `silent_count` and `never_count` of nodes, `gpu_count`, `least_price` of a GPU hour.

    Each counts by itself: a filter may join other tables.
    """
    here = Node.objects.filter(dc=OuterRef("pk")).order_by().values("dc")
    silent = Node.objects.in_state(NodeState.SILENT).filter(dc=OuterRef("pk")).order_by().values("dc")
    never = Node.objects.in_state(NodeState.NEVER).filter(dc=OuterRef("pk")).order_by().values("dc")
    prices = GpuPool.objects.filter(dc=OuterRef("pk")).order_by("price_per_gpu_hour")
    return DataCenter.objects.annotate(
        node_count=_counted(here, Count("pk")),
        silent_count=_counted(silent, Count("pk")),
        never_count=_counted(never, Count("pk")),
        gpu_count=_counted(here, Sum("gpus")),
        least_price=Subquery(prices.values("price_per_gpu_hour")[:1]),
    )


def with_nodes(*states: NodeState) -> QuerySet[DataCenter]:
    """Those with a node in one of `states`."""
    has_nodes = (Exists(Node.objects.in_state(state).filter(dc=OuterRef("pk"))) for state in states)
    return DataCenter.objects.filter(reduce(or_, map(Q, has_nodes)))


def _counted(rows: QuerySet[Any], what: Aggregate) -> Coalesce:
    whole = rows.annotate(counted=what).values("counted")
    return Coalesce(Subquery(whole, output_field=IntegerField()), 0)


def nodes_in(thing: Thing) -> QuerySet[Node] | None:
    """The nodes of a data centre or a GPU pool."""
    return thing.nodes.all() if isinstance(thing, DataCenter | GpuPool) else None


def links_of(thing: Thing) -> QuerySet[WanLink] | None:
    """The links of a data centre."""
    if not isinstance(thing, DataCenter):
        return None
    return WanLink.objects.filter(Q(a=thing) | Q(b=thing)).select_related("a", "b")
