"""Tables and filters of plans and computations."""

import django_filters as filters
import django_tables2 as tables

from engine.schedule.registry import name_of
from webapp.planning.models import Computation, ComputationState, Plan
from webapp.planning.placement_form import SOURCE_WORDS
from webapp.tables import DASH, NumberColumn, StateColumn, Table, TimeColumn, state


class PlanTable(Table):
    name = tables.LinkColumn("planning:plan-detail", args=[tables.A("pk")], verbose_name="Plan")
    policy = tables.Column(accessor="request__policy", default=DASH, orderable=False)
    stages = NumberColumn("Stages", accessor="request__job__partitions", orderable=False)
    cells = NumberColumn("Best D", accessor="shown__dp_cells", orderable=False)
    iteration = NumberColumn(
        "Iteration", accessor="shown__iteration_ms", unit="ms", decimals=1, orderable=False
    )
    cost = NumberColumn(
        "Cost", accessor="shown__cost_per_iteration", unit="$/iteration", decimals=5, orderable=False
    )
    created_at = TimeColumn(verbose_name="Created")

    narrow = ("name", "iteration", "cost")

    class Meta(Table.Meta):
        model = Plan
        fields = ("name", "policy", "stages", "cells", "iteration", "cost", "created_by", "created_at")
        order_by = "-created_at"

    def render_policy(self, value: str) -> str:
        return name_of(value)


class PlanFilterSet(filters.FilterSet):
    q = filters.CharFilter(field_name="name", lookup_expr="icontains", label="Find")

    class Meta:
        model = Plan
        fields = ["q"]


class ComputationTable(Table):
    name = tables.LinkColumn("schedules:schedule-detail", args=[tables.A("pk")], verbose_name="Comparison")
    kind = tables.Column(accessor="get_kind_display", order_by="kind")
    state = StateColumn()
    policies = tables.Column(accessor="request__policies", orderable=False)
    created_at = TimeColumn(verbose_name="Created")

    narrow = ("name", "state")

    class Meta(Table.Meta):
        model = Computation
        fields = ("name", "kind", "state", "policies", "created_by", "created_at")
        order_by = "-created_at"

    def render_policies(self, value: list[str]) -> str:
        return "; ".join(map(name_of, value))

    def render_state(self, record: Computation) -> str:
        return state(record.state, record.get_state_display())


class PlacementTable(Table):
    name = tables.LinkColumn("placement:placement-detail", args=[tables.A("pk")], verbose_name="Placement")
    state = StateColumn()
    source = tables.Column("Devices from", orderable=False)
    grid = tables.Column("Stages × pipelines", orderable=False)
    cost_s = NumberColumn("Cost", unit="s per iteration", decimals=3, orderable=False)
    created_at = TimeColumn(verbose_name="Created")

    narrow = ("name", "state", "cost_s")

    class Meta(Table.Meta):
        model = Computation
        fields = ("name", "state", "source", "grid", "cost_s", "created_by", "created_at")
        order_by = "-created_at"

    def render_state(self, record: Computation) -> str:
        return state(record.state, record.get_state_display())

    def render_grid(self, value: list[int]) -> str:
        return " × ".join(f"{count:,}" for count in value)

    def render_source(self, value: str) -> str:
        return SOURCE_WORDS[value]


class ComputationFilterSet(filters.FilterSet):
    q = filters.CharFilter(field_name="name", lookup_expr="icontains", label="Find")
    state = filters.MultipleChoiceFilter(choices=ComputationState.choices)

    class Meta:
        model = Computation
        fields = ["q", "state"]
