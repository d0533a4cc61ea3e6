"""Addresses under runs/, in the namespace `jobs`; webapp/live/urls.py has those of a run's page."""

from django.urls import path

from webapp.jobs import launch_views, views

urlpatterns = [
    path("", views.run_list, name="run-list"),
    path("dry/", launch_views.run_dry, name="run-dry"),
    path("<int:pk>/cancel/", launch_views.run_cancel, name="run-cancel"),
    path("<int:pk>/retry/", launch_views.run_retry, name="run-retry"),
    path("<int:pk>/clone/", launch_views.run_clone, name="run-clone"),
]
