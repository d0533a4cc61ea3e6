"""Filter of lists of computations."""

import django_filters as filters

from webapp.common.archived import ArchivedFilterSet
from webapp.computations.models import Computation, ComputationState


class ComputationFilterSet(ArchivedFilterSet):
    q = filters.CharFilter(field_name="name", lookup_expr="icontains", label="Find")
    state = filters.MultipleChoiceFilter(choices=ComputationState.choices)

    class Meta:
        model = Computation
        fields = ["q", "state"]
