"""How data centres, nodes, links and GPU types are found."""

from collections.abc import Iterator
from typing import Any

from django.db.models import Q
from django.urls import reverse

from engine.cluster.gpus import catalogue
from webapp.accounts.models import READERS
from webapp.accounts.permissions import may_somewhere
from webapp.common.search import Begin, Listed, Rows, of_which
from webapp.inventory.models import DataCenter, Node, WanLink


def _links_with(word: str) -> Q:
    ends = (of_which(end, word, DataCenter, "name", "place") for end in ("a", "b"))
    return next(ends) | next(ends)


def _datacenter(dc: DataCenter) -> tuple[str, str, str]:
    return dc.name, reverse("inventory:datacenter-detail", args=[dc.pk]), dc.place


def _nodes(user: Any) -> Any:
    return Node.objects.visible_to(user).select_related("dc").defer("seen_ranks", "seen_hardware")


def _node(node: Node) -> tuple[str, str, str]:
    return node.name, reverse("inventory:node-detail", args=[node.pk]), f"{node.dc.name}, {node.host}"


def _links(user: Any) -> Any:
    return WanLink.objects.visible_to(user).select_related("a", "b")


def _link(link: WanLink) -> tuple[str, str, str]:
    return str(link), reverse("inventory:link-detail", args=[link.pk]), f"{link.bandwidth_gbps:g} Gbit/s"


def _gpu_types(user: Any) -> Iterator[tuple[str, str, str]]:
    if may_somewhere(user, READERS):
        for name, gpu in catalogue().items():
            yield name, reverse("inventory:gputype-detail", args=[name]), gpu.label


KINDS = (
    Rows(
        order=20,
        name="datacenter",
        label="Data centres",
        rows=DataCenter.objects.visible_to,
        named="name",
        hit=_datacenter,
        matches=lambda word: Q(Begin(word, "name", "place")),
    ),
    Rows(
        order=60,
        name="node",
        label="Nodes",
        rows=_nodes,
        named="name",
        hit=_node,
        matches=lambda word: Q(Begin(word, "name", "host")),
    ),
    Rows(
        order=70,
        name="link",
        label="Links",
        rows=_links,
        named="a__name",
        hit=_link,
        matches=_links_with,
    ),
    Listed(order=120, name="gputype", label="GPU types", things=_gpu_types),
)
