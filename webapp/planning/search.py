"""How plans are found: by name, labels and note."""

from typing import Any

from django.db.models import Q
from django.urls import reverse

from webapp.common.archived import dated
from webapp.common.described import labelled
from webapp.common.search import Begin, Rows
from webapp.planning.models import Plan


def _plans(user: Any) -> Any:
    return Plan.objects.visible_to(user).only("name", "labels", "created_at", "archived_at")


def _plan(plan: Plan) -> tuple[str, str, str]:
    return (
        plan.name,
        reverse("planning:plan-detail", args=[plan.pk]),
        f"{dated(plan)}{labelled(plan)}",
    )


KINDS = (
    Rows(
        order=30,
        name="plan",
        label="Plans",
        rows=_plans,
        named="name",
        hit=_plan,
        matches=lambda word: Q(Begin(word, "name", "labels", "note")),
    ),
)
