"""The site's addresses. Everything but login and health wants a login (LoginRequiredMiddleware).

The pages of runs are of two apps and have one namespace.
"""

from django.urls import include, path

from webapp import health, views
from webapp.accounts.views import LoginView, LogoutView
from webapp.jobs import urls as jobs
from webapp.live import urls as live

urlpatterns = [
    path("", views.overview, name="overview"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("login/", LoginView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("", include("webapp.accounts.urls")),
    path("", include("webapp.inventory.urls")),
    path("plans/", include("webapp.planning.urls")),
    path("", include("webapp.planning.design_urls")),
    path("placement/", include("webapp.planning.placement_urls")),
    path("schedules/", include("webapp.planning.schedule_urls")),
    path("runs/", include(([*jobs.urlpatterns, *live.urlpatterns], "jobs"))),
    path("", include("webapp.prefill.urls")),
    path("v1/", include("webapp.prefill.api_urls")),
]
