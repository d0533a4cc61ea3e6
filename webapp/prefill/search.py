"""How tenancies and replays are found."""

from typing import Any

from django.db.models import Q
from django.urls import reverse

from webapp.common.archived import dated
from webapp.common.search import Begin, Rows
from webapp.computations.models import Computation
from webapp.prefill.models import Tenancy
from webapp.prefill.replays.sources import replays


def _tenancies(user: Any) -> Any:
    return Tenancy.objects.visible_to(user).select_related("tenant")


def _tenancy(tenancy: Tenancy) -> tuple[str, str, str]:
    detail = f"{tenancy.model}, {tenancy.tenant.get_username()}"
    return tenancy.name, reverse("prefill:tenancy-detail", args=[tenancy.pk]), detail


def _replays(user: Any) -> Any:
    return replays().visible_to(user).only("name", "created_at", "archived_at")


def _replay(row: Computation) -> tuple[str, str, str]:
    return row.name, reverse("prefill:replay-detail", args=[row.pk]), dated(row)


KINDS = (
    Rows(
        order=58,
        name="replay",
        label="Replays",
        rows=_replays,
        named="name",
        hit=_replay,
        matches=lambda word: Q(Begin(word, "name")),
    ),
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
