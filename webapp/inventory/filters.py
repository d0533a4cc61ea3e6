"""Filters of the inventory's lists; their dropdowns offer what the user may see."""

from typing import Any

import django_filters as filters
from django import forms
from django.db.models import Q

from engine.cluster.gpus import catalogue
from engine.cluster.regions import regions
from webapp.common.lists import Find
from webapp.inventory.catalogue import RegionRow, known_countries
from webapp.inventory.models import DataCenter, LinkSource, Node, NodeState, WanLink
from webapp.inventory.selectors.datacenters import visible_dcs, with_nodes


class DataCenterFilterSet(filters.FilterSet):
    q = Find("name", "place")
    gpu_type = filters.ChoiceFilter(
        field_name="pools__gpu_type",
        choices=lambda: [(name, name) for name in sorted(catalogue())],
        label="GPU type",
    )

    country = filters.ChoiceFilter(label="Country")
    state = filters.ChoiceFilter(
        choices=[
            ("silent", "With silent nodes"),
            ("never", "With nodes never seen"),
            ("answering", "All nodes answer"),
            ("empty", "No nodes"),
        ],
        method="in_state",
        label="State",
    )

    class Meta:
        model = DataCenter
        fields = ["q", "country", "gpu_type", "state"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        codes = visible_dcs(self.request).order_by().values_list("country", flat=True).distinct()
        self.filters["country"].extra["choices"] = known_countries(codes)

    def in_state(self, queryset: Any, name: str, value: str) -> Any:
        if value in (NodeState.SILENT, NodeState.NEVER):
            return queryset.filter(pk__in=with_nodes(NodeState(value)).values("pk"))
        if value == "empty":
            return queryset.filter(nodes__isnull=True)
        return queryset.filter(pk__in=Node.objects.values("dc")).exclude(
            pk__in=with_nodes(NodeState.SILENT, NodeState.NEVER).values("pk")
        )


class LinkFilterSet(filters.FilterSet):
    q = Find("a__name", "b__name")
    dc = filters.ModelChoiceFilter(queryset=visible_dcs, method="of_dc", label="Data centre")

    source = filters.ChoiceFilter(choices=LinkSource.choices, method="from_source", label="Values from")

    class Meta:
        model = WanLink
        fields = ["q", "dc", "source"]

    def from_source(self, queryset: Any, name: str, value: str) -> Any:
        either = Q(latency_from__source=value) | Q(bandwidth_from__source=value)
        if value == LinkSource.DECLARED:
            either |= Q(latency_from__isnull=True) | Q(bandwidth_from__isnull=True)
        return queryset.filter(either)

    def of_dc(self, queryset: Any, name: str, value: DataCenter) -> Any:
        return queryset.filter(Q(a=value) | Q(b=value))


class RegionForm(forms.Form):
    q = forms.CharField(label="Find", required=False)
    cloud = forms.ChoiceField(required=False, choices=lambda: [("", "Any"), *_clouds()])
    gpu_type = forms.ChoiceField(
        label="GPU type",
        required=False,
        choices=lambda: [("", "Any"), *((name, name) for name in sorted(catalogue()))],
    )


class RegionFilter:
    """Filters the catalogue's regions, which are no table of the database, as a FilterSet filters rows."""

    def __init__(self, data: Any, queryset: list[RegionRow], request: Any) -> None:
        self.form = RegionForm(data)
        self.queryset = queryset

    @property
    def qs(self) -> list[RegionRow]:
        if not self.form.is_valid():
            return self.queryset
        data = self.form.cleaned_data
        text = data["q"].strip().lower()
        return [
            row
            for row in self.queryset
            if text in f"{row.region.name} {row.region.place} {row.country}".lower()
            and data["cloud"] in ("", row.region.cloud)
            and (not data["gpu_type"] or data["gpu_type"] in {price.gpu_type for price in row.prices})
        ]


def _clouds() -> list[tuple[str, str]]:
    return [(cloud, cloud) for cloud in sorted({region.cloud for region in regions().values()})]
