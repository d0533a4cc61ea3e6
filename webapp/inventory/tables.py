"""Tables of the inventory."""

from typing import Any

import django_tables2 as tables
from django.urls import reverse
from django.utils.html import format_html

from engine.cluster.regions import countries
from webapp.common.tables import DASH, NumberColumn, StateColumn, Table, TimeColumn, state
from webapp.inventory.models import DataCenter, GpuPool, LinkMeasurement, NodeState, WanLink


class DataCenterTable(Table):
    name = tables.LinkColumn("inventory:datacenter-detail", args=[tables.A("pk")])
    state = StateColumn(accessor="node_count", order_by=("-silent_count", "-never_count"))
    country = tables.Column(visible=True)
    pools = tables.Column("GPU types", accessor="pools", orderable=False)
    node_count = NumberColumn("Nodes")
    gpu_count = NumberColumn("GPUs")
    price = NumberColumn("Price", unit="$/GPU h", decimals=2, accessor="least_price")
    intra_gbps = NumberColumn("Inside", unit="Gbit/s", decimals=1)
    fabric = tables.Column("Fabric")

    class Meta(Table.Meta):
        model = DataCenter
        fields = (
            "name",
            "state",
            "place",
            "country",
            "pools",
            "node_count",
            "gpu_count",
            "price",
            "intra_gbps",
            "fabric",
        )
        order_by = "name"

    def render_pools(self, value: Any) -> str:
        return ", ".join(pool.gpu_type for pool in value.all()) or DASH

    def render_country(self, value: str) -> str:
        return countries().get(value, value)

    def render_state(self, record: Any) -> str:
        return state(*datacenter_state(record))

    def render_price(self, record: Any) -> str:
        prices = sorted({pool.price_per_gpu_hour for pool in record.pools.all()})
        ends = dict.fromkeys((*prices[:1], *prices[-1:]))
        return " – ".join(f"{price:,.2f}" for price in ends) or DASH


def datacenter_state(dc: Any) -> tuple[str, str]:
    """(code, words) of a data centre that comes with its counts: what its nodes say, whether it drains."""
    if getattr(dc, "draining_since", None):
        return "stopping", "Draining"
    if not dc.node_count:
        return "never", "No nodes"
    if not dc.silent_count + dc.never_count:
        return "online", "Online"
    counts = ((dc.silent_count, "silent"), (dc.never_count, NodeState.NEVER.label.lower()))
    words = ", ".join(f"{n} {word}" for n, word in counts if n)
    all_alike = {dc.silent_count: "silent", dc.never_count: "never"}
    return all_alike.get(
        dc.node_count, "warn"
    ), f"{words} of {dc.node_count} node{'' if dc.node_count == 1 else 's'}"


class PoolTable(Table):
    gpu_type = tables.LinkColumn(
        "inventory:gputype-detail", args=[tables.A("gpu_type")], verbose_name="GPU type"
    )
    actions = tables.TemplateColumn(
        template_name="inventory/pool_actions.html",
        verbose_name="Actions",
        orderable=False,
        attrs={"td": {"class": "num"}, "th": {"class": "num"}},
    )
    narrow = ("gpu_type", "price_per_gpu_hour", "actions")
    node_count = NumberColumn("Nodes")
    gpu_count = NumberColumn("GPUs")
    price_per_gpu_hour = NumberColumn("Price", unit="$/GPU h", decimals=2)

    class Meta(Table.Meta):
        model = GpuPool
        fields = ("gpu_type", "node_count", "gpu_count", "price_per_gpu_hour", "actions")
        order_by = "gpu_type"


class LinkTable(Table):
    pair = tables.Column("Link", accessor="pk", order_by=("a__name", "b__name"))
    latency_ms = NumberColumn("One way", unit="ms", decimals=1)
    bandwidth_gbps = NumberColumn("Bandwidth", unit="Gbit/s per node pair", decimals=2)
    connections = NumberColumn("Connections", default="auto")
    egress_price_per_gb = NumberColumn("Egress", unit="$/GB", decimals=3)
    source = tables.Column("Values from", accessor="pk", orderable=False)

    class Meta(Table.Meta):
        model = WanLink
        fields = ("pair", "latency_ms", "bandwidth_gbps", "connections", "egress_price_per_gb", "source")
        order_by = "pair"

    def render_source(self, record: WanLink) -> str:
        rows = (record.latency_from, record.bandwidth_from)
        words = dict.fromkeys(row.get_source_display() if row else "Declared" for row in rows)
        return " and ".join(words).capitalize()

    def render_pair(self, record: WanLink) -> str:
        return format_html('<a href="{}">{}</a>', reverse("inventory:link-detail", args=[record.pk]), record)


class MeasurementTable(Table):
    at = TimeColumn()
    source = tables.Column()
    latency_ms = NumberColumn("One way", unit="ms", decimals=2)
    bandwidth_gbps = NumberColumn("Bandwidth", unit="Gbit/s per node pair", decimals=3)
    connections = NumberColumn("Connections")
    actor = tables.Column("By", default="Meridian")
    use = tables.TemplateColumn(
        template_name="inventory/measurement_use.html",
        verbose_name="Use",
        orderable=False,
        attrs={"td": {"class": "num"}, "th": {"class": "num"}},
    )
    narrow = ("at", "latency_ms", "use")

    class Meta(Table.Meta):
        model = LinkMeasurement
        fields = ("at", "source", "latency_ms", "bandwidth_gbps", "connections", "actor", "use")
        order_by = "-at"


class GpuTypeTable(Table):
    name = tables.LinkColumn(
        "inventory:gputype-detail",
        accessor="gpu__name",
        args=[tables.A("gpu__name")],
        verbose_name="GPU type",
    )
    label = tables.Column("Description", accessor="gpu__label")
    have = NumberColumn("Registered", unit="GPUs")
    fp8 = NumberColumn("FP8", accessor="peaks__fp8", unit="TFLOP/s", decimals=0)
    half = NumberColumn("BF16 or FP16", unit="TFLOP/s", decimals=0)
    tf32 = NumberColumn("TF32", accessor="peaks__tf32", unit="TFLOP/s", decimals=0)
    fp32 = NumberColumn("FP32", accessor="peaks__fp32", unit="TFLOP/s", decimals=1)
    memory_gib = NumberColumn("Memory", unit="GiB")
    hbm_gb_s = NumberColumn("Memory", unit="GB/s")
    host_gb_s = NumberColumn("Host", unit="GB/s", decimals=2)
    link_gb_s = NumberColumn("In a node", unit="GB/s", decimals=2)
    nic_gb_s = NumberColumn("Network", unit="GB/s", decimals=2)
    narrow = ("name", "half", "memory_gib", "have")

    class Meta(Table.Meta):
        order_by = "name"


class RegionTable(Table):
    name = tables.Column("Region", accessor="region__name")
    place = tables.Column(accessor="region__place")
    country = tables.Column()
    time_zone = tables.Column("Time zone", accessor="region__time_zone")
    prices = tables.Column("GPUs with a list price", orderable=False)
    least_price = NumberColumn("from", unit="$/GPU h", decimals=2)
    use = tables.TemplateColumn(
        template_name="inventory/region_use.html",
        verbose_name="Use",
        orderable=False,
        attrs={"td": {"class": "num"}},
    )
    narrow = ("name", "place", "use")

    class Meta(Table.Meta):
        order_by = "name"

    def render_prices(self, value: Any) -> str:
        return ", ".join(price.gpu_type for price in value) or DASH


class PoolsOfTypeTable(Table):
    dc = tables.LinkColumn(
        "inventory:datacenter-detail", args=[tables.A("dc_id")], verbose_name="Data centre"
    )
    node_count = NumberColumn("Nodes")
    gpu_count = NumberColumn("GPUs")
    price_per_gpu_hour = NumberColumn("Price", unit="$/GPU h", decimals=2)

    class Meta(Table.Meta):
        model = GpuPool
        fields = ("dc", "node_count", "gpu_count", "price_per_gpu_hour")
        order_by = "dc"
