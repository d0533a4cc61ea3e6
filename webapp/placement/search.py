"""How placements are found."""

from typing import Any

from django.db.models import Q
from django.urls import reverse

from webapp.common.archived import dated
from webapp.common.search import Begin, Rows
from webapp.computations.models import Computation
from webapp.placement.selectors import placements


def _placements(user: Any) -> Any:
    return placements().visible_to(user).only("name", "created_at", "archived_at")


def _placement(row: Computation) -> tuple[str, str, str]:
    return (
        row.name,
        reverse("placement:placement-detail", args=[row.pk]),
        dated(row),
    )


KINDS = (
    Rows(
        order=50,
        name="placement",
        label="Placements",
        rows=_placements,
        named="name",
        hit=_placement,
        matches=lambda word: Q(Begin(word, "name")),
    ),
)
