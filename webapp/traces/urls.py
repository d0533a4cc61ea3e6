from django.urls import path

from webapp.traces import views
from webapp.traces.pages import pages

app_name = "traces"
urlpatterns = [
    path("", views.trace_list, name="trace-list"),
    *pages.archive.urls(),
    path("new/", views.trace_create, name="trace-create"),
    path("<uuid:pk>/", views.trace_detail, name="trace-detail"),
    path("<uuid:pk>/what-if/", views.trace_ask, name="trace-ask"),
    path("<uuid:pk>/analysis.json", views.trace_analysis, name="trace-analysis"),
    path("<uuid:pk>/timeline.json", views.trace_timeline, name="trace-timeline"),
    path("<uuid:pk>/<slug:table>.csv", views.trace_table, name="trace-table"),
    path("<uuid:pk>/cancel/", views.trace_cancel, name="trace-cancel"),
]
