from django.urls import path

from webapp.inventory import catalogue_views, map_views, node_views, views
from webapp.inventory.models import DataCenter, Node

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
    path("nodes/", node_views.nodes.list, name="node-list"),
    path("nodes/new/", node_views.nodes.create, name="node-create"),
    path("nodes/reach/", node_views.node_reach, name="node-reach"),
    path("nodes/join-commands/", node_views.join_list, name="join-list"),
    path("nodes/join-commands/<int:pk>/revoke/", node_views.join_revoke, name="join-revoke"),
    path("nodes/<int:pk>/", node_views.node_detail, name="node-detail"),
    path("nodes/<int:pk>/edit/", node_views.nodes.edit, name="node-edit"),
    path("nodes/<int:pk>/delete/", node_views.nodes.delete, name="node-delete"),
    path("nodes/<int:pk>/join-command/", node_views.node_join_command, name="node-join-command"),
    path("nodes/<int:pk>/waiting/", node_views.node_waiting, name="node-waiting"),
    path("nodes/<int:pk>/enrol/", node_views.node_enrol, name="node-enrol"),
    path("nodes/<int:pk>/revoke/", node_views.node_revoke, name="node-revoke"),
    path("nodes/<int:pk>/drain/", node_views.drain, {"of": Node}, name="node-drain"),
    path("nodes/<int:pk>/resume/", node_views.resume, {"of": Node}, name="node-resume"),
    path("nodes/<int:pk>/probe/", node_views.node_probe, name="node-probe"),
    path("datacenters/<int:pk>/drain/", node_views.drain, {"of": DataCenter}, name="datacenter-drain"),
    path("datacenters/<int:pk>/resume/", node_views.resume, {"of": DataCenter}, name="datacenter-resume"),
    path("datacenters/<int:pk>/probe/", node_views.node_probe_all, name="datacenter-probe"),
    path("links/<int:pk>/probe/", node_views.link_probe, name="link-probe"),
    path("links/<int:pk>/measure/", node_views.link_measure, name="link-measure"),
    path("links/<int:pk>/trial/", node_views.link_trial, name="link-trial"),
    path("api/v1/nodes/join/", node_views.node_join, name="node-join"),
    *_pages("link", "links", views.links),
]
