from django.urls import path

from webapp.schedules import views
from webapp.schedules.pages import pages

app_name = "schedules"
urlpatterns = [
    path("", views.schedule_list, name="schedule-list"),
    *pages.urls(),
    path("new/", views.schedule_create, name="schedule-create"),
    path("<uuid:pk>/", views.schedule_detail, name="schedule-detail"),
    path("<uuid:pk>/document.json", views.schedule_document, name="schedule-document"),
    path("<uuid:pk>/table.csv", views.schedule_table, name="schedule-table"),
    path("<uuid:pk>/<slug:policy>/timeline.json", views.schedule_timeline, name="schedule-timeline"),
    path("<uuid:pk>/<slug:policy>/<slug:form>/", views.schedule_download, name="schedule-download"),
]
