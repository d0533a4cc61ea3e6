"""Filters of the lists of people, teams, invitations and audit rows."""

from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import django_filters as filters
from django import forms
from django.core.cache import cache
from django.db.models import Q, QuerySet
from django.utils import timezone

from webapp.accounts.models import (
    AuditEntry,
    Invitation,
    InvitationState,
    Membership,
    Role,
    Team,
    User,
)
from webapp.accounts.selectors import people

STATES = (("active", "Active"), ("deactivated", "Deactivated"), ("locked", "Locked out"))
DAY = forms.DateInput(attrs={"placeholder": "2026-01-31", "inputmode": "numeric", "autocomplete": "off"})


def _my_teams(request: Any) -> QuerySet[Team]:
    return Team.objects.administered_by(request.user) if request else Team.objects.none()


def _my_people(request: Any) -> QuerySet[User]:
    return people(request.user).order_by("username") if request else User.objects.none()


class MemberFilterSet(filters.FilterSet):
    q = filters.CharFilter(method="find", label="Find")
    team = filters.ModelChoiceFilter(queryset=_my_teams, label="Team")
    role = filters.ChoiceFilter(choices=Role.choices, label="Role")
    state = filters.ChoiceFilter(choices=STATES, method="in_state", label="Account")

    class Meta:
        model = Membership
        fields = ["q", "team", "role", "state"]

    def find(self, queryset: Any, name: str, value: str) -> Any:
        names = ("username", "first_name", "last_name", "email")
        matches = Q()
        for field in names:
            matches |= Q(**{f"user__{field}__icontains": value})
        return queryset.filter(matches)

    def in_state(self, queryset: Any, name: str, value: str) -> Any:
        if value == "locked":
            return queryset.filter(locked=True)
        return queryset.filter(user__is_active=value == "active")


class TeamFilterSet(filters.FilterSet):
    q = filters.CharFilter(field_name="name", lookup_expr="icontains", label="Find")

    class Meta:
        model = Team
        fields = ["q"]


class InvitationFilterSet(filters.FilterSet):
    q = filters.CharFilter(field_name="email", lookup_expr="icontains", label="Find")
    team = filters.ModelChoiceFilter(queryset=_my_teams, label="Team")
    state = filters.ChoiceFilter(choices=InvitationState.choices, method="in_state", label="State")

    class Meta:
        model = Invitation
        fields = ["q", "team", "state"]

    def in_state(self, queryset: Any, name: str, value: str) -> Any:
        if value == InvitationState.ACCEPTED:
            return queryset.filter(accepted_at__isnull=False)
        if value == InvitationState.REVOKED:
            return queryset.filter(revoked_at__isnull=False)
        left = queryset.filter(accepted_at=None, revoked_at=None)
        now = timezone.now()
        return (
            left.filter(expires_at__gt=now)
            if value == InvitationState.OPEN
            else left.filter(expires_at__lte=now)
        )


def _known(column: str) -> Any:
    """The values of a column of the audit as choices, remembered for a minute; an index holds them."""

    def choices() -> list[tuple[str, str]]:
        rows = AuditEntry.objects.order_by(column).values_list(column, flat=True).distinct()
        values = cache.get_or_set(_cached(column), lambda: list(rows), 60) or []
        return [(value, value) for value in values]

    return choices


def _cached(column: str) -> str:
    return f"audit-{column}"


class AuditFilterSet(filters.FilterSet):
    q = filters.CharFilter(method="find", label="Find", help_text="Object, message or request id")
    actor = filters.ModelChoiceFilter(queryset=_my_people, label="Who")
    verb = filters.ChoiceFilter(choices=_known("verb"), label="Action")
    object_type = filters.ChoiceFilter(choices=_known("object_type"), label="To a")
    team = filters.ModelChoiceFilter(queryset=_my_teams, label="Team")
    since = filters.DateFilter(method="from_day", label="From", widget=DAY)
    until = filters.DateFilter(method="to_day", label="To", widget=DAY)
    object_id = filters.CharFilter(widget=forms.HiddenInput())

    class Meta:
        model = AuditEntry
        fields = ["q", "actor", "verb", "object_type", "team", "since", "until", "object_id"]

    def __init__(self, data: Any = None, *args: Any, **kwargs: Any) -> None:
        for column in ("verb", "object_type"):  # one that was written a moment ago may not be remembered yet
            value, remembered = (data or {}).get(column), cache.get(_cached(column))
            if value and remembered is not None and value not in remembered:
                cache.delete(_cached(column))
        super().__init__(data, *args, **kwargs)

    def find(self, queryset: Any, name: str, value: str) -> Any:
        return queryset.search(value)

    def from_day(self, queryset: Any, name: str, value: Any) -> Any:
        return queryset.filter(at__gte=self._midnight(value))

    def to_day(self, queryset: Any, name: str, value: Any) -> Any:
        return queryset.filter(at__lt=self._midnight(value + timedelta(days=1)))

    def _midnight(self, day: Any) -> datetime:
        """When `day` begins where the reader is: zone of the account, else of the browser, else UTC."""
        own = getattr(getattr(self.request, "user", None), "time_zone", "")
        zone = _zone(own) or _zone(self.data.get("zone", "")) or UTC
        return datetime.combine(day, time.min, tzinfo=zone)


def _zone(name: str) -> ZoneInfo | None:
    """The time zone called `name`, or None where there is none: browsers and addresses say what they like."""
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, OSError, ValueError):
        return None
