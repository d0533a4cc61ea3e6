"""Tables of the inventory."""

from typing import Any

import django_tables2 as tables
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.timesince import timesince

from webapp.inventory.models import DataCenter, GpuPool, Node, NodeState, WanLink
from webapp.tables import DASH, NumberColumn, StateColumn, Table


class DataCenterTable(Table):
    name = tables.LinkColumn("inventory:datacenter-detail", args=[tables.A("pk")])
    pools = tables.Column("GPU types", accessor="pools", orderable=False)
    node_count = NumberColumn("Nodes")
    gpu_count = NumberColumn("GPUs")
    price = NumberColumn("Price", unit="$/GPU h", decimals=2, accessor="pools", orderable=False)
    intra_gbps = NumberColumn("Inside", unit="Gbit/s", decimals=1)

    class Meta(Table.Meta):
        model = DataCenter
        fields = ("name", "place", "pools", "node_count", "gpu_count", "price", "intra_gbps")
        order_by = "name"

    def render_pools(self, value: Any) -> str:
        return ", ".join(pool.gpu_type for pool in value.all()) or DASH

    def render_price(self, value: Any) -> str:
        prices = sorted({pool.price_per_gpu_hour for pool in value.all()})
        ends = dict.fromkeys((*prices[:1], *prices[-1:]))
        return " – ".join(f"{price:,.2f}" for price in ends) or DASH


class PoolTable(Table):
    gpu_type = tables.Column("GPU type")
    node_count = NumberColumn("Nodes")
    gpu_count = NumberColumn("GPUs")
    price_per_gpu_hour = NumberColumn("Price", unit="$/GPU h", decimals=2)

    class Meta(Table.Meta):
        model = GpuPool
        fields = ("gpu_type", "node_count", "gpu_count", "price_per_gpu_hour")
        order_by = "gpu_type"


class NodeTable(Table):
    name = tables.LinkColumn("inventory:node-detail", args=[tables.A("pk")])
    state = StateColumn(order_by=("last_seen",))
    dc = tables.LinkColumn(
        "inventory:datacenter-detail", args=[tables.A("dc_id")], verbose_name="Data centre"
    )
    gpus = NumberColumn("GPUs")
    host = tables.Column("Address")
    last_seen = tables.Column("Last heard")
    version = tables.Column("Agent")

    class Meta(Table.Meta):
        model = Node
        fields = ("name", "state", "dc", "gpus", "device", "host", "last_seen", "version")
        order_by = "name"

    def render_last_seen(self, record: Node) -> str:
        if record.last_seen is None:
            return DASH
        if record.state == NodeState.ONLINE:
            return "now"
        return format_html("{} ago", timesince(record.last_seen, timezone.now()))


class LinkTable(Table):
    pair = tables.Column("Link", accessor="pk", order_by=("a__name", "b__name"))
    latency_ms = NumberColumn("One way", unit="ms", decimals=1)
    bandwidth_gbps = NumberColumn("Bandwidth", unit="Gbit/s a node pair", decimals=2)
    connections = NumberColumn("Connections", default="auto")
    egress_price_per_gb = NumberColumn("Egress", unit="$/GB", decimals=3)

    class Meta(Table.Meta):
        model = WanLink
        fields = ("pair", "latency_ms", "bandwidth_gbps", "connections", "egress_price_per_gb")
        order_by = "pair"

    def render_pair(self, record: WanLink) -> str:
        return format_html('<a href="{}">{}</a>', reverse("inventory:link-detail", args=[record.pk]), record)
