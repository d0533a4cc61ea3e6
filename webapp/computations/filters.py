"""Filter of lists of computations."""

import django_filters as filters

from webapp.common.archived import ArchivedFilterSet
from webapp.common.lists import Find
from webapp.computations.models import Computation, ComputationState


class ComputationFilterSet(ArchivedFilterSet):
    q = Find("name")
    state = filters.MultipleChoiceFilter(choices=ComputationState.choices)

    class Meta:
        model = Computation
        fields = ["q", "state"]
