"""The list of nodes: its columns, and what it can be filtered by."""

from typing import Any

import django_filters as filters
import django_tables2 as tables
from django.db.models import Q
from django.urls import reverse
from django.utils.html import format_html

from engine.versions import series
from webapp.common.lists import Find
from webapp.common.tables import DASH, NumberColumn, StateColumn, Table, TimeColumn, state
from webapp.inventory.models import Device, JoinToken, Node, NodeState
from webapp.inventory.selectors.datacenters import visible_dcs

FURTHER_STATES = (("draining", "Draining"), ("version", "Another version"), ("apart", "Not joined"))


class NodeTable(Table):
    name = tables.LinkColumn("inventory:node-detail", args=[tables.A("pk")])
    state = StateColumn(order_by=("last_seen",))
    dc = tables.LinkColumn(
        "inventory:datacenter-detail", args=[tables.A("dc_id")], verbose_name="Data centre"
    )
    gpus = NumberColumn("GPUs")
    busy = NumberColumn("Busy")
    free = NumberColumn("Free", accessor="pk", orderable=False)
    device = tables.Column("Device")
    host = tables.Column("Address")
    clock_offset_ms = NumberColumn("Clock", unit="ms")
    version = tables.Column("Agent")
    last_seen = TimeColumn("Last heartbeat", style="ago")

    narrow = ("name", "state", "gpus", "busy")

    class Meta(Table.Meta):
        model = Node
        fields = (
            "name",
            "state",
            "dc",
            "gpus",
            "busy",
            "free",
            "device",
            "host",
            "clock_offset_ms",
            "version",
            "last_seen",
        )
        order_by = "name"

    def render_state(self, record: Node) -> str:
        shown = state(str(record.state), record.state.label)
        return format_html("{} {}", shown, state("stopping", "Draining")) if record.is_draining else shown

    def render_free(self, record: Any) -> str:
        """GPUs that a run could have now; none where the node is given no work."""
        usable = record.state == NodeState.ONLINE and not record.is_draining and not record.is_skewed
        return f"{max(0, record.gpus - record.busy) if usable and record.is_enrolled else 0}"

    def render_clock_offset_ms(self, record: Node) -> str:
        offset_ms = round(record.clock_offset_ms or 0.0, 2)
        text = f"{offset_ms:+.2f}".replace("-", "−") if offset_ms else "0.00"
        return (
            format_html('<span class="breaks" title="more than 5 ms off">{}</span>', text)
            if record.clock_is_off
            else text
        )

    def render_version(self, record: Node) -> str:
        if not record.version:
            return DASH
        if not record.is_skewed:
            return record.version
        return format_html(
            '<span class="breaks" title="the site is {}.x">{}</span>', series(), record.version
        )


class JoinTokenTable(Table):
    """Join commands that still work. None shows its token: the site has only a hash of it."""

    node = tables.LinkColumn("inventory:node-detail", args=[tables.A("node_id")], order_by=("node__name",))
    created_by = tables.Column("Made by", order_by=("created_by__username",), default="Meridian")
    created_at = TimeColumn("Made", style="ago")
    expires_at = TimeColumn("Valid until", style="minute")
    revoke = tables.Column("Action", empty_values=(), orderable=False)

    narrow = ("node", "created_by", "revoke")

    class Meta(Table.Meta):
        model = JoinToken
        fields = ("node", "created_by", "created_at", "expires_at", "revoke")
        order_by = "-created_at"

    def render_revoke(self, record: JoinToken) -> str:
        url = reverse("inventory:join-revoke", args=[record.pk])
        return format_html('<a href="{}">Revoke…</a>', url)


class NodeFilterSet(filters.FilterSet):
    q = Find("name", "host")
    dc = filters.ModelChoiceFilter(queryset=visible_dcs, label="Data centre")
    device = filters.ChoiceFilter(choices=Device.choices, label="Device")
    state = filters.ChoiceFilter(
        choices=(*NodeState.choices, *FURTHER_STATES), method="in_state", label="State"
    )

    class Meta:
        model = Node
        fields = ["q", "dc", "device", "state"]

    def in_state(self, queryset: Any, name: str, value: str) -> Any:
        if value == "draining":
            return queryset.exclude(draining_since=None, dc__draining_since=None)
        if value == "version":
            same = Q(version="") | Q(version=series()) | Q(version__startswith=f"{series()}.")
            return queryset.exclude(same)
        if value == "apart":
            return queryset.filter(acl_sha256="")
        return queryset.in_state(value)


class JoinTokenFilterSet(filters.FilterSet):
    q = Find("node__name", "created_by__username")

    class Meta:
        model = JoinToken
        fields = ["q"]
