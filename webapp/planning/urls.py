from django.urls import path

from webapp.jobs.launch_views import plan_launch_form
from webapp.planning import placing_views, views

app_name = "planning"
urlpatterns = [
    path("", views.plan_list, name="plan-list"),
    path("new/", views.plan_create, name="plan-create"),
    path("computing/<uuid:pk>/", views.plan_computing, name="plan-computing"),
    path("computing/<uuid:pk>/stop/", views.plan_stop, name="plan-stop"),
    path("compare/", views.plan_compare, name="plan-compare"),
    path("<int:pk>/", views.plan_detail, name="plan-detail"),
    path("<int:pk>/<slug:table>.csv", views.plan_table, name="plan-table"),
    path("<int:pk>/refine/", views.plan_refine, name="plan-refine"),
    path("<int:pk>/refine/stop/", views.plan_refine_stop, name="plan-refine-stop"),
    path("<int:pk>/refining/", views.plan_refining, name="plan-refining"),
    path("<int:pk>/place/", placing_views.plan_place, name="plan-place"),
    path("<int:pk>/placing/", placing_views.plan_placing, name="plan-placing"),
    path("<int:pk>/save/", views.plan_save, name="plan-save"),
    path("<int:pk>/rename/", views.plan_rename, name="plan-rename"),
    path("<int:pk>/clone/", views.plan_clone, name="plan-clone"),
    path("<int:pk>/document.json", views.plan_document, name="plan-document"),
    path("<int:pk>/launch/", views.plan_launch, name="plan-launch"),
    path("<int:pk>/launch/<int:option>/", plan_launch_form, name="plan-launch-form"),
]
