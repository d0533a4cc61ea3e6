"""How tenancies are found."""

from typing import Any

from django.db.models import Q
from django.urls import reverse

from webapp.common.search import Begin, Rows
from webapp.prefill.models import Tenancy


def _tenancies(user: Any) -> Any:
    return Tenancy.objects.visible_to(user).select_related("tenant")


def _tenancy(tenancy: Tenancy) -> tuple[str, str, str]:
    detail = f"{tenancy.model}, {tenancy.tenant.get_username()}"
    return tenancy.name, reverse("prefill:tenancy-detail", args=[tenancy.pk]), detail


KINDS = (
    Rows(
        order=80,
        name="tenancy",
        label="Tenancies",
        rows=_tenancies,
        named="name",
        hit=_tenancy,
        matches=lambda word: Q(Begin(word, "name", "model", "purpose")),
    ),
)
