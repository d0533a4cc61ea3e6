"""How plans are found: by name, labels and note."""

from django.db.models import Q
from django.urls import reverse

from webapp.common.archived import dated
from webapp.common.described import labelled
from webapp.common.search import Begin, Rows
from webapp.planning.models import Plan

KINDS = (
    Rows(
        order=30,
        name="plan",
        label="Plans",
        rows=lambda user: Plan.objects.visible_to(user).only("name", "labels", "created_at", "archived_at"),
        named="name",
        hit=lambda plan: (
            plan.name,
            reverse("planning:plan-detail", args=[plan.pk]),
            f"{dated(plan)}{labelled(plan)}",
        ),
        matches=lambda word: Q(Begin(word, "name", "labels", "note")),
    ),
)
