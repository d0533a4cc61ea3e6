"""How traces are found."""

from typing import Any

from django.db.models import Q
from django.urls import reverse

from webapp.common.archived import dated
from webapp.common.search import Begin, Rows
from webapp.computations.models import Computation
from webapp.traces.selectors import traces


def _traces(user: Any) -> Any:
    return traces().visible_to(user).only("name", "created_at", "archived_at")


def _trace(row: Computation) -> tuple[str, str, str]:
    return row.name, reverse("traces:trace-detail", args=[row.pk]), dated(row)


KINDS = (
    Rows(
        order=57,
        name="trace",
        label="Traces",
        rows=_traces,
        named="name",
        hit=_trace,
        matches=lambda word: Q(Begin(word, "name")),
    ),
)
