"""The pages of the catalogues: GPU types, and regions to begin a data centre from."""

from django.db.models import Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from engine.cluster.gpus import catalogue
from engine.cluster.regions import PRICES_SOURCE, REGIONS_SOURCE
from webapp.common.lists import bound_table, list_page
from webapp.inventory.catalogue import GpuRow, gpu_rows, prices_of, region_rows
from webapp.inventory.filters import RegionFilter
from webapp.inventory.models import GpuPool
from webapp.inventory.tables import GpuTypeTable, PoolsOfTypeTable, RegionTable


@require_GET
def gpu_type_list(request: HttpRequest) -> HttpResponse:
    """The GPU types that pools may be of."""
    have = dict(
        GpuPool.objects.visible_to(request.user)
        .order_by()
        .values_list("gpu_type")
        .annotate(gpus=Sum("nodes__gpus", default=0))
    )
    context = {
        "title": "GPU types",
        "table": bound_table(request, GpuTypeTable, gpu_rows(have)),
    }
    return render(request, "inventory/gputype_list.html", context)


@require_GET
def gpu_type_detail(request: HttpRequest, name: str) -> HttpResponse:
    """What one GPU type can do, where that is from, what it costs, and which pools have it."""
    if name not in catalogue():
        raise Http404
    pools = GpuPool.objects.visible_to(request.user).filter(gpu_type=name).select_related("dc").with_counts()
    row = GpuRow(gpu=catalogue()[name], have=0)
    context = {
        "gputype": row,
        "pools": bound_table(request, PoolsOfTypeTable, pools, prefix="pools-"),
        "prices": prices_of(name),
        "prices_source": PRICES_SOURCE,
    }
    return render(request, "inventory/gputype_detail.html", context)


@require_GET
def region_list(request: HttpRequest) -> HttpResponse:
    """Regions of public clouds; each can fill in the form of a data centre."""
    return list_page(
        request,
        title="Add from catalogue",
        note=f"Regions: {REGIONS_SOURCE}. Prices: {PRICES_SOURCE}.",
        rows=region_rows(),
        filter_class=RegionFilter,
        table_class=RegionTable,
        empty="The catalogue has no regions.",
        context={"crumbs": [("Data centres", "/datacenters/")]},
    )
