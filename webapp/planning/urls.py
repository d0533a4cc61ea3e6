"""Addresses of plans, in the namespace `planning`; placement and jobs add some."""

from django.urls import path
from django.views.decorators.http import require_POST

from webapp.planning import archive, views

urlpatterns = [
    path("", views.plan_list, name="plan-list"),
    *archive.pages.urls(),
    archive.describe_page.url(),
    path("new/", views.plan_create, name="plan-create"),
    path("model/", views.plan_model, name="plan-model"),
    path("computing/<uuid:pk>/", views.plan_computing, name="plan-computing"),
    path("computing/<uuid:pk>/stop/", views.plan_stop, name="plan-stop"),
    path("compare/", views.plan_compare, name="plan-compare"),
    path("<int:pk>/", views.plan_detail, name="plan-detail"),
    path("<int:pk>/<slug:table>.csv", views.plan_table, name="plan-table"),
    path("<int:pk>/refine/", require_POST(views.refinement.start), name="plan-refine"),
    path("<int:pk>/refine/stop/", require_POST(views.refinement.stop), name="plan-refine-stop"),
    path("<int:pk>/refining/", views.refinement.page, name="plan-refining"),
    path("<int:pk>/cross-dc/", views.comparison.page, name="plan-cross-dc"),
    path("<int:pk>/cross-dc/compare/", require_POST(views.comparison.start), name="plan-cross-dc-compare"),
    path("<int:pk>/cross-dc/stop/", require_POST(views.comparison.stop), name="plan-cross-dc-stop"),
    path("<int:pk>/save/", views.plan_save, name="plan-save"),
    path("<int:pk>/rename/", views.plan_rename, name="plan-rename"),
    path("<int:pk>/clone/", views.plan_clone, name="plan-clone"),
    path("<int:pk>/document.json", views.plan_document, name="plan-document"),
]
