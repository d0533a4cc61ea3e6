from django.urls import path

from webapp.jobs import views

app_name = "jobs"
urlpatterns = [
    path("", views.run_list, name="run-list"),
    path("<int:pk>/", views.run_detail, name="run-detail"),
    path("<int:pk>/cancel/", views.run_cancel, name="run-cancel"),
    path("<int:pk>/live.json", views.run_live, name="run-live"),
]
