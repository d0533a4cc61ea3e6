"""Tables of a run's iterations and of its checkpoints."""

from typing import Any

import django_tables2 as tables
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode

from webapp.common.markup import as_bytes
from webapp.common.tables import DASH, NumberColumn, StateColumn, Table, TimeColumn
from webapp.jobs.models import CheckpointStatus, RunCheckpoint
from webapp.live.models import IterationStat

NUMBER = {"td": {"class": "num"}, "th": {"class": "num"}}


class IterationTable(Table):
    iteration = NumberColumn("Iteration")
    loss = NumberColumn("Loss", decimals=4)
    bits_per_byte = NumberColumn("Loss", unit="bits/byte", decimals=4)
    validation_loss = NumberColumn("Validation loss", decimals=4)
    validation_bits_per_byte = NumberColumn("Validation loss", unit="bits/byte", decimals=4)
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
            "bits_per_byte",
            "validation_loss",
            "validation_bits_per_byte",
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


class CheckpointTable(Table):
    """
    every : the interval of the run's checkpoints, in iterations; None where its job has none.
    resumable : whether the reader may launch a run from one.
    """

    step = NumberColumn("After iteration")
    kind = tables.Column("Kind", empty_values=(), orderable=False)
    status = StateColumn("State", accessor="state")
    where = tables.Column("Where", orderable=False, attrs={"td": {"class": "wrap mono"}})
    size = tables.Column("Size", attrs=NUMBER)
    took_s = NumberColumn("Time to write", unit="s", decimals=1)
    at = TimeColumn(verbose_name="When")
    resume = tables.Column("Resume", empty_values=(), orderable=False, accessor="pk")

    narrow = ("step", "status", "resume")

    class Meta(Table.Meta):
        model = RunCheckpoint
        fields = ("step", "kind", "status", "where", "size", "took_s", "at", "resume")
        order_by = "-step"

    def __init__(self, *args: Any, every: int | None, resumable: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._every, self._resumable = every, resumable

    def render_kind(self, record: RunCheckpoint) -> str:
        if not self._every or not record.step:
            return DASH
        return "End of the run" if record.step % self._every else "Interval"

    def render_where(self, record: RunCheckpoint) -> str:
        return f"{record.where} ({record.detail})" if record.detail else record.where

    def render_size(self, value: int) -> str:
        return as_bytes(value)

    def render_resume(self, record: RunCheckpoint) -> str:
        if not self._resumable or record.status != CheckpointStatus.SAVED:
            return ""
        url = f"{reverse('jobs:run-clone', args=[record.run_id])}?{urlencode({'checkpoint': record.pk})}"
        label = f"Resume from the checkpoint after iteration {record.step:,}"
        return format_html('<a class="button" href="{}" aria-label="{}">Resume from</a>', url, label)
