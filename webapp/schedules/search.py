"""How comparisons of schedules are found."""

from typing import Any

from django.db.models import Q
from django.urls import reverse

from webapp.common.archived import dated
from webapp.common.search import Begin, Rows
from webapp.computations.models import Computation, ComputationKind


def _comparisons(user: Any) -> Any:
    comparisons = Computation.objects.of(ComputationKind.SCHEDULES, ComputationKind.SWEEP)
    return comparisons.visible_to(user).only("name", "created_at", "archived_at")


def _comparison(row: Computation) -> tuple[str, str, str]:
    return (
        row.name,
        reverse("schedules:schedule-detail", args=[row.pk]),
        dated(row),
    )


KINDS = (
    Rows(
        order=55,
        name="comparison",
        label="Comparisons of schedules",
        rows=_comparisons,
        named="name",
        hit=_comparison,
        matches=lambda word: Q(Begin(word, "name")),
    ),
)
