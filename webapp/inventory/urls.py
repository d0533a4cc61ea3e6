from django.urls import path

from webapp.inventory import views

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
    *_pages("node", "nodes", views.nodes),
    *_pages("link", "links", views.links),
    path("nodes/<int:pk>/enrol/", views.node_enrol, name="node-enrol"),
]
