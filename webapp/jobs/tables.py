"""Table of runs."""

import django_tables2 as tables

from webapp.common.tables import DASH, NumberColumn, StateColumn, Table, TimeColumn
from webapp.jobs.models import Run
from webapp.live.models import IterationStat

NUMBER = {"td": {"class": "num"}, "th": {"class": "num"}}


class RunTable(Table):
    name = tables.LinkColumn(
        "jobs:run-detail", args=[tables.A("pk")], accessor="job__name", verbose_name="Run"
    )
    status = StateColumn("State")
    status_reason = tables.Column("Reason", orderable=False, attrs={"td": {"class": "wrap"}})
    generation = NumberColumn("Attempt")
    iteration = NumberColumn("Iteration")
    steps = NumberColumn("of")
    created_by = tables.Column(verbose_name="By")
    created_at = TimeColumn(verbose_name="Launched")
    finished_at = TimeColumn(verbose_name="Ended")

    narrow = ("name", "status", "iteration")

    narrow = ("name", "status", "iteration")

    class Meta(Table.Meta):
        model = Run
        fields = (
            "name",
            "status",
            "status_reason",
            "generation",
            "iteration",
            "steps",
            "created_by",
            "created_at",
            "finished_at",
        )
        order_by = "-created_at"

    def render_status(self, record: Run) -> str:
        code = "waiting" if record.status_label == "Waiting" else record.status
        return StateColumn().render((code, record.status_label))

    def render_status_reason(self, record: Run) -> str:
        return record.waits_for or record.status_reason

    def render_iteration(self, value: int) -> str:
        return f"{value + 1:,}"  # people count from 1: the number of iterations done


class IterationTable(Table):
    iteration = NumberColumn("Iteration")
    loss = NumberColumn("Loss", decimals=4)
    validation_loss = NumberColumn("Validation loss", decimals=4)
    grad_norm = NumberColumn("Gradient norm", decimals=4)
    learning_rate = tables.Column(verbose_name="Learning rate", attrs=NUMBER)
    tokens = NumberColumn("Tokens")
    tokens_per_s = NumberColumn("Throughput", unit="tokens/s", empty_values=(), orderable=False)
    took = NumberColumn("Took", unit="ms", decimals=1, empty_values=(), orderable=False)
    utilization = NumberColumn("Utilization", unit="%", decimals=1)

    narrow = ("iteration", "loss", "tokens_per_s", "took")

    class Meta(Table.Meta):
        model = IterationStat
        fields = (
            "iteration", "loss", "validation_loss", "grad_norm", "learning_rate", "tokens", "tokens_per_s",
            "took", "utilization",
        )  # fmt: skip
        order_by = "-iteration"

    def render_iteration(self, value: int) -> str:
        return f"{value + 1:,}"

    def render_learning_rate(self, value: float) -> str:
        return f"{value:.3g}"

    def render_utilization(self, value: float) -> str:
        return f"{100 * value:.1f}"

    def render_took(self, record: IterationStat) -> str:
        seconds = _seconds(record)
        return f"{seconds * 1e3:,.1f}" if seconds else DASH

    def render_tokens_per_s(self, record: IterationStat) -> str:
        seconds = _seconds(record)
        return f"{record.tokens / seconds:,.0f}" if record.tokens and seconds else DASH


def _seconds(record: IterationStat) -> float:
    return 0.0 if record.start is None or record.end is None else record.end - record.start
