"""Addresses under runs/, in the namespace `jobs`; webapp/live/urls.py has those of a run's page.

`plan_urlpatterns` stand under plans/ and `placement_urlpatterns` under placement/, in their namespaces.
"""

from django.urls import path

from webapp.jobs import archive, launch_views, views

urlpatterns = [
    path("", views.run_list, name="run-list"),
    *archive.pages.urls(),
    archive.describe_page.url(),
    path("queue/", views.run_queue, name="run-queue"),
    path("priority/", views.run_priority, name="run-priority"),
    path("move/", views.run_move, name="run-move"),
    path("swap/", launch_views.swap_launch, name="swap-launch"),
    path("samples/<int:pk>/", launch_views.run_samples, name="run-samples"),
    path("dry/", launch_views.run_dry, name="run-dry"),
    path("<int:pk>/cancel/", launch_views.run_cancel, name="run-cancel"),
    path("<int:pk>/retry/", launch_views.run_retry, name="run-retry"),
    path("<int:pk>/clone/", launch_views.run_clone, name="run-clone"),
]

plan_urlpatterns = [
    path("<int:pk>/launch/", launch_views.plan_launch, name="plan-launch"),
    path("<int:pk>/launch/replicas/", launch_views.plan_launch_replicas, name="plan-launch-replicas"),
    path("<int:pk>/launch/<int:option>/", launch_views.plan_launch_form, name="plan-launch-form"),
]

placement_urlpatterns = [
    path("<uuid:pk>/launch/", launch_views.placement_launch, name="placement-launch"),
]
