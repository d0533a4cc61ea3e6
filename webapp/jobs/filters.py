"""Filter of the list of runs."""

import django_filters as filters
from django.forms import CheckboxSelectMultiple

from webapp.jobs.models import Run, Status


class RunFilterSet(filters.FilterSet):
    q = filters.CharFilter(field_name="job__name", lookup_expr="icontains", label="Find")
    status = filters.MultipleChoiceFilter(
        choices=Status.choices, label="State", widget=CheckboxSelectMultiple
    )

    class Meta:
        model = Run
        fields = ["q", "status"]
