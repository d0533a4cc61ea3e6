"""The site's addresses. Everything but login and health wants a login (LoginRequiredMiddleware)."""

from django.contrib.auth.views import LogoutView
from django.urls import include, path

from webapp import views
from webapp.accounts.views import LoginView

urlpatterns = [
    path("", views.overview, name="overview"),
    path("healthz", views.healthz, name="healthz"),
    path("login/", LoginView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("", include("webapp.inventory.urls")),
    path("plans/", include("webapp.planning.urls")),
    path("runs/", include("webapp.jobs.urls")),
]
