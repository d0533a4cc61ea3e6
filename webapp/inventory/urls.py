from django.urls import path

from webapp.inventory import catalogue_views, map_views, node_urls, views

app_name = "inventory"


def _pages(name: str, folder: str, page: views.Pages) -> list:
    return [
        path(f"{folder}/", page.list, name=f"{name}-list"),
        path(f"{folder}/new/", page.create, name=f"{name}-create"),
        path(f"{folder}/<int:pk>/", page.detail, name=f"{name}-detail"),
        path(f"{folder}/<int:pk>/edit/", page.edit, name=f"{name}-edit"),
        path(f"{folder}/<int:pk>/delete/", page.delete, name=f"{name}-delete"),
    ]


urlpatterns = [
    *_pages("datacenter", "datacenters", views.datacenters),
    path("datacenters/<int:dc>/pools/new/", views.pools.create_in, name="pool-create"),
    path("pools/<int:pk>/edit/", views.pools.edit, name="pool-edit"),
    path("pools/<int:pk>/delete/", views.pools.delete, name="pool-delete"),
    path("map/", map_views.datacenter_map, name="map"),
    path("gpu-types/", catalogue_views.gpu_type_list, name="gputype-list"),
    path("gpu-types/<slug:name>/", catalogue_views.gpu_type_detail, name="gputype-detail"),
    path("regions/", catalogue_views.region_list, name="region-list"),
    path("links/matrix/", map_views.link_matrix_page, name="link-matrix"),
    path("links/suggestion/", map_views.link_suggestion, name="link-suggestion"),
    path(
        "links/<int:pk>/measurements/<int:measurement>/use/",
        map_views.measurement_use,
        name="measurement-use",
    ),
    *node_urls.urlpatterns,
    *_pages("link", "links", views.links),
]
