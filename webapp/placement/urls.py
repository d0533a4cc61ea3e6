"""Addresses of placements; `plan_urlpatterns` stand under plans/, in the namespace `planning`."""

from django.urls import path

from webapp.placement import views
from webapp.placement.pages import pages

urlpatterns = [
    path("", views.placement_list, name="placement-list"),
    *pages.urls(),
    path("new/", views.placement_create, name="placement-create"),
    path("<uuid:pk>/", views.placement_detail, name="placement-detail"),
    path("<uuid:pk>/document.json", views.placement_document, name="placement-document"),
    path("<uuid:pk>/<slug:table>.csv", views.placement_table, name="placement-table"),
]

plan_urlpatterns = [
    path("<int:pk>/place/", views.plan_place, name="plan-place"),
    path("<int:pk>/placing/", views.plan_placing, name="plan-placing"),
]
