from django.urls import path

from webapp.jobs import launch_views, log_views, views

app_name = "jobs"
urlpatterns = [
    path("", views.run_list, name="run-list"),
    path("dry/", launch_views.run_dry, name="run-dry"),
    path("<int:pk>/", views.run_detail, name="run-detail"),
    path("<int:pk>/cancel/", launch_views.run_cancel, name="run-cancel"),
    path("<int:pk>/retry/", launch_views.run_retry, name="run-retry"),
    path("<int:pk>/clone/", launch_views.run_clone, name="run-clone"),
    path("<int:pk>/live.json", views.run_live, name="run-live"),
    path("<int:pk>/history.json", views.run_history, name="run-history"),
    path("<int:pk>/spans.json", views.run_spans, name="run-spans"),
    path("<int:pk>/trace.json", views.run_trace, name="run-trace"),
    path("<int:pk>/document.json", views.run_document, name="run-document"),
    path("<int:pk>/metrics/", views.run_metrics, name="run-metrics"),
    path("<int:pk>/metrics.csv", views.run_metrics_download, name="run-metrics-download"),
    path("<int:pk>/logs/", log_views.run_logs, name="run-logs"),
    path("<int:pk>/logs.txt", log_views.run_logs_download, name="run-logs-download"),
]
