"""Table of placements."""

import django_tables2 as tables

from webapp.common.tables import NumberColumn, StateColumn, Table, TimeColumn, state
from webapp.computations.models import Computation
from webapp.placement.forms import SOURCE_WORDS


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
