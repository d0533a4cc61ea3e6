"""Filters of the lists of tenancies, keys and usage."""

from typing import Any

import django_filters as filters
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from webapp.accounts.filters import DAY
from webapp.common.lists import Find
from webapp.prefill.models import ApiKey, KeyState, Outcome, Tenancy, TenancyStatus, UsageEvent


def _tenancies(request: HttpRequest | None) -> QuerySet[Tenancy]:
    return Tenancy.objects.visible_to(request.user).order_by("name") if request else Tenancy.objects.none()


class TenancyFilterSet(filters.FilterSet):
    q = Find("name", "tenant__username", "model")
    state = filters.ChoiceFilter(choices=TenancyStatus.choices, method="in_state", label="State")

    class Meta:
        model = Tenancy
        fields = ["q", "state"]

    def in_state(self, rows: Any, name: str, value: str) -> Any:
        """As Tenancy.state says it: one past its end has ended."""
        over = Q(status__in=(TenancyStatus.ACTIVE, TenancyStatus.SUSPENDED), ends_at__lte=timezone.now())
        if value == TenancyStatus.ENDED:
            return rows.filter(over | Q(status=value))
        return rows.filter(status=value).exclude(over)


class KeyFilterSet(filters.FilterSet):
    q = filters.CharFilter(method="find", label="Find")
    state = filters.ChoiceFilter(choices=KeyState.choices, method="in_state", label="State")

    class Meta:
        model = ApiKey
        fields = ["q", "state"]

    def find(self, rows: Any, name: str, text: str) -> Any:
        return rows.filter(
            Q(name__icontains=text) | Q(prefix__startswith=text[:16]) | Q(tenancy__name__icontains=text)
        )

    def in_state(self, rows: Any, name: str, value: str) -> Any:
        now = timezone.now()
        if value == KeyState.REVOKED:
            return rows.filter(revoked_at__isnull=False)
        live = rows.filter(revoked_at=None)
        if value == KeyState.LIVE:
            return live.filter(expires_at=None)
        return (
            live.filter(expires_at__gt=now)
            if value == KeyState.EXPIRING
            else live.filter(expires_at__lte=now)
        )


class UsageFilterSet(filters.FilterSet):
    tenancy = filters.ModelChoiceFilter(queryset=_tenancies, label="Tenancy")
    outcome = filters.ChoiceFilter(choices=Outcome.choices, label="Outcome")
    since = filters.DateFilter(field_name="at", lookup_expr="date__gte", label="From (UTC)", widget=DAY)
    until = filters.DateFilter(field_name="at", lookup_expr="date__lte", label="To (UTC)", widget=DAY)

    class Meta:
        model = UsageEvent
        fields = ["tenancy", "outcome", "since", "until"]
