"""Addresses of a run's page under runs/, in the namespace `jobs`."""

from django.urls import path

from webapp.live import checkpoint_views, compare_views, log_views, range_views, views

urlpatterns = [
    path("compare/", compare_views.run_compare, name="run-compare"),
    path("<int:pk>/", views.run_detail, name="run-detail"),
    path("<int:pk>/live.json", views.run_live, name="run-live"),
    path("<int:pk>/history.json", views.run_history, name="run-history"),
    path("<int:pk>/spans.json", views.run_spans, name="run-spans"),
    path("<int:pk>/ranges/", range_views.run_ranges, name="run-ranges"),
    path("<int:pk>/ranges/<int:kept>/delete/", range_views.run_range_delete, name="run-range-delete"),
    path("<int:pk>/gpus.json", views.run_gpus, name="run-gpus"),
    path("<int:pk>/trace.json", views.run_trace, name="run-trace"),
    path("<int:pk>/document.json", views.run_document, name="run-document"),
    path("<int:pk>/metrics/", views.run_metrics, name="run-metrics"),
    path("<int:pk>/metrics.csv", views.run_metrics_download, name="run-metrics-download"),
    path("<int:pk>/checkpoints.json", checkpoint_views.run_checkpoints_json, name="run-checkpoints-json"),
    path("<int:pk>/checkpoints/", checkpoint_views.run_checkpoints, name="run-checkpoints"),
    path("<int:pk>/logs/", log_views.run_logs, name="run-logs"),
    path("<int:pk>/logs.txt", log_views.run_logs_download, name="run-logs-download"),
]
