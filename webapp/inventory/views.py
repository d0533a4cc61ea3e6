"""Pages of the inventory: data centres, GPU pools and links differ in tables, forms and words only."""

from typing import Any

from django.urls import reverse

from webapp.inventory import forms
from webapp.inventory.filters import DataCenterFilterSet, LinkFilterSet
from webapp.inventory.models import DataCenter, GpuPool, WanLink
from webapp.inventory.pages import Pages
from webapp.inventory.selectors.datacenters import datacenters_for_lists
from webapp.inventory.tables import DataCenterTable, LinkTable, PoolTable


def _datacenter_of(pool: Any) -> str:
    return reverse("inventory:datacenter-detail", args=[pool.dc_id])


def _above_pool(pool: Any) -> list[tuple[str, str]]:
    return [("Data centres", reverse("inventory:datacenter-list")), (str(pool.dc), _datacenter_of(pool))]


datacenters = Pages(
    name="datacenter",
    one="data centre",
    title="Data centres",
    form=forms.DataCenterForm,
    empty="No data centres yet. Add one to plan a job on it.",
    rows=lambda: datacenters_for_lists().prefetch_related("pools"),
    whole=lambda: DataCenter.objects.select_related("team"),
    table=DataCenterTable,
    filter=DataCenterFilterSet,
    actions=(("inventory:map", "Map"), ("inventory:region-list", "Add from catalogue")),
    form_template="inventory/datacenter_form.html",
)
pools = Pages(  # shown on the pages of their data centres; no list and no page of their own
    name="pool",
    one="GPU pool",
    title="GPU pools",
    form=forms.PoolForm,
    empty="",
    rows=lambda: GpuPool.objects.with_counts(),
    whole=lambda: GpuPool.objects.select_related("dc__team"),
    table=PoolTable,
    filter=None,
    home=_datacenter_of,
    above=_above_pool,
)
links = Pages(
    name="link",
    one="link",
    title="Links",
    form=forms.LinkForm,
    empty="No links yet. A pipeline needs a link between two data centres to span both.",
    rows=lambda: WanLink.objects.select_related("a", "b", "latency_from", "bandwidth_from"),
    whole=lambda: WanLink.objects.select_related("a__team", "b"),
    table=LinkTable,
    filter=LinkFilterSet,
    actions=(("inventory:map", "Map"), ("inventory:link-matrix", "Matrix")),
    form_template="inventory/link_form.html",
)
