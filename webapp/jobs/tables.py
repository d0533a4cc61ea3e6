"""Tables of runs: all of them, and those that wait."""

from html import escape
from typing import Any

import django_tables2 as tables
from django.utils.safestring import SafeString

from webapp.common.tables import DASH, NumberColumn, StateColumn, Table, TimeColumn
from webapp.jobs.models import Run
from webapp.planning.trained import trained_in_short


class ModelTable(Table):
    """Rows have what `RunQuerySet.with_models` adds."""

    trains = tables.Column(
        "Trains, parameters", accessor="trained_model", orderable=False, attrs={"td": {"class": "wrap"}}
    )

    def render_trains(self, value: Any, record: Any) -> str:
        return trained_in_short(value, record.planned_model, record.stages or 1, of_plan=record.of_plan)


class RunTable(ModelTable):
    name = tables.LinkColumn(
        "jobs:run-detail", args=[tables.A("pk")], accessor="job__name", verbose_name="Run"
    )
    state = StateColumn("State", order_by=("status",))
    reason = tables.Column("Reason", orderable=False, attrs={"td": {"class": "wrap"}})
    labels = tables.Column(orderable=False, attrs={"td": {"class": "wrap"}})
    generation = NumberColumn("Attempt")
    iteration = NumberColumn("Iteration")
    steps = NumberColumn("of")
    created_by = tables.Column(verbose_name="By")
    created_at = TimeColumn(verbose_name="Launched")
    finished_at = TimeColumn(verbose_name="Ended")

    narrow = ("name", "state", "iteration")

    class Meta(Table.Meta):
        model = Run
        fields = (
            "name",
            "state",
            "reason",
            "trains",
            "labels",
            "generation",
            "iteration",
            "steps",
            "created_by",
            "created_at",
            "finished_at",
        )
        order_by = "-created_at"

    def render_iteration(self, value: int) -> str:
        return "–" if value < 0 else f"{value + 1:,}"  # people count from 1: the number of iterations done


class QueueTable(ModelTable):
    """Rows have `position`, which is of no use while a schedule is searched for: it is not looked at then."""

    position = NumberColumn("Position", orderable=False)
    name = tables.LinkColumn(
        "jobs:run-detail",
        args=[tables.A("pk")],
        accessor="job__name",
        verbose_name="Run",
        orderable=False,
    )
    priority = tables.Column(orderable=False)
    move = tables.Column("Order", accessor="pk", orderable=False, attrs={"td": {"class": "moves"}})
    reason = tables.Column("Reason", orderable=False, attrs={"td": {"class": "wrap"}})
    team = tables.Column("Team", accessor="job__team__name", orderable=False)
    created_by = tables.Column(verbose_name="By", orderable=False)
    status_since = TimeColumn(verbose_name="Waits since", orderable=False)

    narrow = ("position", "name", "move", "reason")

    class Meta(Table.Meta):
        model = Run
        fields = (
            "position",
            "name",
            "priority",
            "move",
            "reason",
            "trains",
            "team",
            "created_by",
            "status_since",
        )

    def render_position(self, value: int, record: Run) -> str:
        return DASH if record.search_id else f"{value:,}"

    def render_move(self, value: int, record: Any) -> SafeString:
        """A button for each direction, of the form `queue-move`; none where there is nobody to swap with."""
        if not record.movable:
            return SafeString(DASH)
        words = (("up", "↑", record.above), ("down", "↓", record.below))
        buttons = [
            f'<button class="link-button" form="queue-move" name="{to}" value="{value}"'
            f' aria-label="Move {escape(str(record))} {to}"{"" if other else " disabled"}>{sign}</button>'
            for to, sign, other in words
        ]
        return SafeString(f'<span id="queued-{value}">{"".join(buttons)}</span>')


class WatchedQueueTable(QueueTable):
    """The queue for those who may not change it."""

    class Meta(QueueTable.Meta):
        exclude = ("move",)
