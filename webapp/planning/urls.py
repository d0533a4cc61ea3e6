from django.urls import path

from webapp.planning import views

app_name = "planning"
urlpatterns = [
    path("", views.plan_list, name="plan-list"),
    path("new/", views.plan_create, name="plan-create"),
    path("<int:pk>/", views.plan_detail, name="plan-detail"),
    path("<int:pk>/document.json", views.plan_document, name="plan-document"),
    path("<int:pk>/launch/", views.plan_launch, name="plan-launch"),
]
