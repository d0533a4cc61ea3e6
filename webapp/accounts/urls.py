from django.urls import path

from webapp.accounts import views

app_name = "accounts"
urlpatterns = [
    path("account/", views.me, name="me"),
]
