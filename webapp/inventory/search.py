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


def _at_end(end: str, word: str) -> Q:
    return of_which(end, word, DataCenter, "name", "place")


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
        hit=lambda dc: (dc.name, reverse("inventory:datacenter-detail", args=[dc.pk]), dc.place),
        matches=lambda word: Q(Begin(word, "name", "place")),
    ),
    Rows(
        order=60,
        name="node",
        label="Nodes",
        rows=lambda user: (
            Node.objects.visible_to(user).select_related("dc").defer("seen_ranks", "seen_hardware")
        ),
        named="name",
        hit=lambda node: (
            node.name,
            reverse("inventory:node-detail", args=[node.pk]),
            f"{node.dc.name}, {node.host}",
        ),
        matches=lambda word: Q(Begin(word, "name", "host")),
    ),
    Rows(
        order=70,
        name="link",
        label="Links",
        rows=lambda user: WanLink.objects.visible_to(user).select_related("a", "b"),
        named="a__name",
        hit=lambda link: (
            str(link),
            reverse("inventory:link-detail", args=[link.pk]),
            f"{link.bandwidth_gbps:g} Gbit/s",
        ),
        matches=lambda word: _at_end("a", word) | _at_end("b", word),
    ),
    Listed(order=120, name="gputype", label="GPU types", things=_gpu_types),
)
