"""Table of traces."""

import django_tables2 as tables

from webapp.common.markup import as_bytes
from webapp.common.tables import NumberColumn, StateColumn, Table, TimeColumn, state
from webapp.computations.models import Computation
from webapp.traces.selectors import FORMATS


class TraceTable(Table):
    name = tables.LinkColumn("traces:trace-detail", args=[tables.A("pk")], verbose_name="Trace")
    format = tables.Column(accessor="trace__format")
    size = NumberColumn("Size", accessor="trace__bytes")
    workers = NumberColumn(accessor="trace__workers")
    iterations = NumberColumn("Iterations", accessor="trace__steps")
    state = StateColumn()
    created_by = tables.Column("Uploaded by")
    created_at = TimeColumn(verbose_name="Uploaded")

    narrow = ("name", "state", "workers")

    class Meta(Table.Meta):
        model = Computation
        fields = ("name", "format", "size", "workers", "iterations", "state", "created_by", "created_at")
        order_by = "-created_at"

    def render_format(self, value: str) -> str:
        return FORMATS[value]

    def render_size(self, value: int) -> str:
        return as_bytes(value)

    def render_state(self, record: Computation) -> str:
        return state(record.state, record.get_state_display())
