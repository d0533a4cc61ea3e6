"""Table of a run's iterations."""

import django_tables2 as tables

from webapp.common.tables import DASH, NumberColumn, Table
from webapp.live.models import IterationStat

NUMBER = {"td": {"class": "num"}, "th": {"class": "num"}}


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
            "iteration",
            "loss",
            "validation_loss",
            "grad_norm",
            "learning_rate",
            "tokens",
            "tokens_per_s",
            "took",
            "utilization",
        )
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
