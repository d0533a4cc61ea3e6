"""Filters of the inventory's lists; their dropdowns offer what the user may see."""

from typing import Any

import django_filters as filters
from django.db.models import Q, QuerySet
from django.utils import timezone

from engine.cluster.gpus import catalogue
from webapp.inventory.models import DataCenter, Device, Node, NodeState, WanLink, silence


def _visible_dcs(request: Any) -> QuerySet[DataCenter]:
    return DataCenter.objects.visible_to(request.user) if request else DataCenter.objects.none()


class DataCenterFilterSet(filters.FilterSet):
    q = filters.CharFilter(method="find", label="Find")
    gpu_type = filters.ChoiceFilter(
        field_name="pools__gpu_type", choices=lambda: [(name, name) for name in sorted(catalogue())],
        label="GPU type",
    )  # fmt: skip

    class Meta:
        model = DataCenter
        fields = ["q", "gpu_type"]

    def find(self, queryset: Any, name: str, value: str) -> Any:
        return queryset.filter(Q(name__icontains=value) | Q(place__icontains=value))


class NodeFilterSet(filters.FilterSet):
    q = filters.CharFilter(field_name="name", lookup_expr="icontains", label="Find")
    dc = filters.ModelChoiceFilter(queryset=_visible_dcs, label="Data centre")
    device = filters.ChoiceFilter(choices=Device.choices, label="Device")
    state = filters.ChoiceFilter(choices=NodeState.choices, method="in_state", label="State")

    class Meta:
        model = Node
        fields = ["q", "dc", "device", "state"]

    def in_state(self, queryset: Any, name: str, value: str) -> Any:
        if value == NodeState.NEVER:
            return queryset.filter(last_seen__isnull=True)
        edge = timezone.now() - silence()
        return queryset.filter(**{"last_seen__gte" if value == NodeState.ONLINE else "last_seen__lt": edge})


class LinkFilterSet(filters.FilterSet):
    q = filters.CharFilter(method="find", label="Find")
    dc = filters.ModelChoiceFilter(queryset=_visible_dcs, method="of_dc", label="Data centre")

    class Meta:
        model = WanLink
        fields = ["q", "dc"]

    def find(self, queryset: Any, name: str, value: str) -> Any:
        return queryset.filter(Q(a__name__icontains=value) | Q(b__name__icontains=value))

    def of_dc(self, queryset: Any, name: str, value: DataCenter) -> Any:
        return queryset.filter(Q(a=value) | Q(b=value))
