"""Table of comparisons of schedules."""

import django_tables2 as tables

from engine.schedule.registry import name_of
from webapp.common.tables import StateColumn, Table, TimeColumn, state
from webapp.computations.models import Computation


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
