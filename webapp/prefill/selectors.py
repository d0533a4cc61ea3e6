"""What the pages of prefill read."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from webapp.inventory.models import DataCenter, Thing
from webapp.prefill import quota
from webapp.prefill.models import ApiKey, Notice, OpenRequest, Outcome, Tenancy, UsageEvent

NEWS = 10


def tenancies_in(thing: Thing) -> QuerySet[Tenancy] | None:
    """The tenancies that are sold GPU time in a data centre."""
    return Tenancy.objects.filter(places__dc=thing) if isinstance(thing, DataCenter) else None


def tenancies(user: Any) -> QuerySet[Tenancy]:
    """The rows of the list."""
    rows = Tenancy.objects.visible_to(user)
    return rows.select_related("tenant", "team").prefetch_related("places__dc")


def keys(user: Any) -> QuerySet[ApiKey]:
    return ApiKey.objects.visible_to(user).select_related("tenancy__team")


def usage(user: Any) -> QuerySet[UsageEvent]:
    return UsageEvent.objects.visible_to(user).select_related("tenancy", "dc")


def in_progress(user: Any) -> int:
    """Requests that `user` may see of which nobody knows yet what they cost."""
    return OpenRequest.objects.visible_to(user).count()


def news(user: Any, tenancy: Tenancy | None = None) -> QuerySet[Notice]:
    """What `user` was told last, of one tenancy or of all."""
    rows = Notice.objects.visible_to(user).select_related("tenancy")
    return (rows if tenancy is None else rows.filter(tenancy=tenancy))[:NEWS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Of some requests: how many, those delivered, their prompt tokens, and the charge (micro-dollars)."""

    requests: int
    delivered: int
    tokens: int
    charge: int

    @property
    def refused_share(self) -> float | None:
        return 100 * (1 - self.delivered / self.requests) if self.requests else None


TOTALS = {
    "requests": Count("pk"),
    "delivered": Count("pk", filter=Q(outcome=Outcome.DELIVERED)),
    "tokens": Sum("prompt_tokens", filter=Q(outcome=Outcome.DELIVERED), default=0),
    "charged": Sum("charge", default=0),
}


def used(rows: QuerySet[UsageEvent], *, days: int | None = None) -> Used:
    """The totals of `rows`, of the last `days` where given."""
    if days is not None:
        rows = rows.filter(at__gte=timezone.now() - timedelta(days=days))
    totals = rows.order_by().aggregate(**TOTALS)
    return Used(charge=totals.pop("charged"), **totals)


def used_this_month(tenancies: Sequence[Tenancy]) -> dict[int, Used]:
    """{tenancy: totals since the first of the month, UTC}."""
    begin, _ = month_of(None)
    rows: Any = UsageEvent.objects.filter(tenancy__in=tenancies, at__gte=begin).order_by().values("tenancy")
    return {
        row.pop("tenancy"): Used(charge=row.pop("charged"), **row) for row in list(rows.annotate(**TOTALS))
    }


def month_of(text: str | None) -> tuple[datetime, datetime]:
    """Begin and end (UTC) of the month that `text` names as 2026-11; of this month where it names none."""
    try:
        begin = datetime.strptime(text or "", "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        begin = timezone.now().astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    begin = begin.replace(year=min(max(begin.year, 2000), 9000))
    return begin, (begin + timedelta(days=32)).replace(day=1)


def statement(user: Any, begin: datetime, end: datetime) -> list[dict[str, Any]]:
    """Of each tenancy and price, what was used and charged in [begin, end)."""
    rows = UsageEvent.objects.visible_to(user).filter(at__gte=begin, at__lt=end).order_by()
    keys = ("tenancy", "tenancy__name", "tenancy__tenant__username", "price")
    return list(rows.values(*keys).annotate(**TOTALS).order_by("tenancy__name", "tenancy", "price"))


def quota_left(tenancy: Tenancy) -> int | None:
    """Tokens that a tenancy may use at once now; None while the broker does not answer."""
    try:
        return quota.look(tenancy.pk, 0, tenancy.tokens_per_min or 1).remaining
    except (redis.RedisError, OSError):
        return None
