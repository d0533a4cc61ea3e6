"""Table and filter of plans."""

import django_tables2 as tables

from engine.schedule.registry import name_of
from webapp.common.described import DescribedFilterSet
from webapp.common.lists import Find
from webapp.common.markup import plain
from webapp.common.tables import DASH, NumberColumn, Table, TimeColumn
from webapp.planning.models import Plan


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
    labels = tables.Column(orderable=False, attrs={"td": {"class": "wrap"}})
    created_at = TimeColumn(verbose_name="Created")

    narrow = ("name", "iteration", "cost")

    class Meta(Table.Meta):
        model = Plan
        fields = (
            "name",
            "policy",
            "stages",
            "cells",
            "iteration",
            "cost",
            "labels",
            "created_by",
            "created_at",
        )
        order_by = "-created_at"

    def render_stages(self, value: int | list[int]) -> str:
        return plain(value)

    def render_policy(self, value: str) -> str:
        return name_of(value)


class PlanFilterSet(DescribedFilterSet):
    q = Find("name", "labels", "note")

    class Meta:
        model = Plan
        fields = ["q", "label"]
