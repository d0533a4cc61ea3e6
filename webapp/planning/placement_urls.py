from django.urls import path

from webapp.jobs.launch_views import placement_launch
from webapp.planning import placement_views as views

app_name = "placement"
urlpatterns = [
    path("", views.placement_list, name="placement-list"),
    path("new/", views.placement_create, name="placement-create"),
    path("<uuid:pk>/", views.placement_detail, name="placement-detail"),
    path("<uuid:pk>/document.json", views.placement_document, name="placement-document"),
    path("<uuid:pk>/<slug:table>.csv", views.placement_table, name="placement-table"),
    path("<uuid:pk>/launch/", placement_launch, name="placement-launch"),
    path("<uuid:pk>/cancel/", views.placement_cancel, name="placement-cancel"),
    path("<uuid:pk>/delete/", views.placement_delete, name="placement-delete"),
]
