"""Table of replays."""

import django_tables2 as tables

from webapp.common.tables import StateColumn, Table, TimeColumn, state
from webapp.computations.models import Computation


class ReplayTable(Table):
    name = tables.LinkColumn("prefill:replay-detail", args=[tables.A("pk")], verbose_name="Replay")
    trace = tables.Column("Trace", accessor="trace_named", orderable=False)
    bubbles = tables.Column("Bubbles", accessor="bubbles_named", orderable=False)
    state = StateColumn()
    created_by = tables.Column("Started by")
    created_at = TimeColumn(verbose_name="Started")

    narrow = ("name", "state")

    class Meta(Table.Meta):
        model = Computation
        fields = ("name", "trace", "bubbles", "state", "created_by", "created_at")
        order_by = "-created_at"

    def render_state(self, record: Computation) -> str:
        return state(record.state, record.get_state_display())
