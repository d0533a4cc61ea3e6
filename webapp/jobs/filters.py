"""Filter of the list of runs."""

from typing import Any

import django_filters as filters
from django.db.models import Q, QuerySet
from django.forms import CheckboxSelectMultiple
from django.http import HttpRequest

from webapp.accounts.models import User
from webapp.common.described import DescribedFilterSet
from webapp.common.lists import Find
from webapp.inventory.mentions import any_of, mentions
from webapp.inventory.models import DataCenter
from webapp.inventory.selectors.datacenters import visible_dcs
from webapp.jobs.models import Run, RunState
from webapp.planning.models import Plan


def _plans(request: HttpRequest | None) -> QuerySet[Plan]:
    return Plan.objects.visible_to(request.user).only("name") if request else Plan.objects.none()


def _people(request: HttpRequest | None) -> QuerySet[User]:
    """Those who launched a run that the user sees."""
    if request is None:
        return User.objects.none()
    launched = Run.objects.visible_to(request.user).order_by().values("created_by")
    return User.objects.filter(pk__in=launched).order_by("username")


class RunFilterSet(DescribedFilterSet):
    q = Find("job__name", "status_reason", "waits_for", "labels", "note")
    status = filters.MultipleChoiceFilter(
        choices=RunState.choices, label="State", method="in_states", widget=CheckboxSelectMultiple
    )
    plan = filters.ModelChoiceFilter(field_name="job__plan", queryset=_plans, label="Plan")
    dc = filters.ModelChoiceFilter(
        queryset=visible_dcs, to_field_name="name", method="runs_in", label="Data centre"
    )
    who = filters.ModelChoiceFilter(field_name="created_by", queryset=_people, label="Launched by")

    class Meta:
        model = Run
        fields = ["q", "status", "plan", "dc", "who", "label"]

    def in_states(self, rows: Any, name: str, states: list[str]) -> QuerySet[Run]:
        """Runs that stand in one of `states`, as rows say it."""
        return rows.with_state().filter(shown_state__in=states) if states else rows

    def runs_in(self, rows: QuerySet[Run], name: str, dc: DataCenter) -> QuerySet[Run]:
        """Runs whose job may use GPUs of a data centre, or of one of its pools."""
        return rows.filter(any_of(Q(job__document__contains=mention) for mention in mentions(dc)))


class QueueFilterSet(filters.FilterSet):
    """The queue is short, and its order is what it is for: it has no filter."""

    class Meta:
        model = Run
        fields: list[str] = []
