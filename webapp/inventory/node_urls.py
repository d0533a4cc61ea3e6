"""Addresses of nodes; part of webapp.inventory.urls."""

from django.urls import path

from webapp.inventory import join_views
from webapp.inventory import node_views as views
from webapp.inventory.models import DataCenter, Node

urlpatterns = [
    path("nodes/", views.nodes.list, name="node-list"),
    path("nodes/new/", views.nodes.create, name="node-create"),
    path("nodes/reach/", views.node_reach, name="node-reach"),
    path("nodes/join-commands/", join_views.join_list, name="join-list"),
    path("nodes/join-commands/<int:pk>/revoke/", join_views.join_revoke, name="join-revoke"),
    path("nodes/<int:pk>/", views.node_detail, name="node-detail"),
    path("nodes/<int:pk>/edit/", views.nodes.edit, name="node-edit"),
    path("nodes/<int:pk>/delete/", views.nodes.delete, name="node-delete"),
    path("nodes/<int:pk>/join-command/", views.node_join_command, name="node-join-command"),
    path("nodes/<int:pk>/waiting/", views.node_waiting, name="node-waiting"),
    path("nodes/<int:pk>/enrol/", views.node_enrol, name="node-enrol"),
    path("nodes/<int:pk>/revoke/", views.node_revoke, name="node-revoke"),
    path("nodes/<int:pk>/drain/", views.drain, {"of": Node}, name="node-drain"),
    path("nodes/<int:pk>/resume/", views.resume, {"of": Node}, name="node-resume"),
    path("nodes/<int:pk>/probe/", views.node_probe, name="node-probe"),
    path("datacenters/<int:pk>/drain/", views.drain, {"of": DataCenter}, name="datacenter-drain"),
    path("datacenters/<int:pk>/resume/", views.resume, {"of": DataCenter}, name="datacenter-resume"),
    path("datacenters/<int:pk>/probe/", views.node_probe_all, name="datacenter-probe"),
    path("links/<int:pk>/probe/", views.link_probe, name="link-probe"),
    path("links/<int:pk>/measure/", views.link_measure, name="link-measure"),
    path("links/<int:pk>/trial/", views.link_trial, name="link-trial"),
    path("api/v1/nodes/join/", views.node_join, name="node-join"),
]
