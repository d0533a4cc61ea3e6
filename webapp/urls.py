"""The site's addresses. Everything but login and health wants a login (LoginRequiredMiddleware).

Pages of several apps may stand under one thing's address, and in its namespace: those of a run, and what
later apps do with a plan or a placement.
"""

from django.urls import include, path

from webapp import health, views
from webapp.accounts.views import LoginView, LogoutView
from webapp.jobs import urls as jobs
from webapp.live import urls as live
from webapp.placement import urls as placement
from webapp.planning import urls as planning

PLANS = [*planning.urlpatterns, *placement.plan_urlpatterns, *jobs.plan_urlpatterns]
PLACEMENTS = [*placement.urlpatterns, *jobs.placement_urlpatterns]
RUNS = [*jobs.urlpatterns, *live.urlpatterns]

handler500 = "webapp.edge.failures.failed"
urlpatterns = [
    path("", views.overview, name="overview"),
    path("search", views.search, name="search"),
    path(".well-known/security.txt", views.security_txt, name="security-txt"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("health", health.readyz, name="health"),  # where clients of OpenAI-compatible servers ask
    path("login/", LoginView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("", include("webapp.accounts.urls")),
    path("", include("webapp.inventory.urls")),
    path("plans/", include((PLANS, "planning"))),
    path("", include("webapp.design.urls")),
    path("placement/", include((PLACEMENTS, "placement"))),
    path("traces/", include("webapp.traces.urls")),
    path("schedules/", include("webapp.schedules.urls")),
    path("runs/", include((RUNS, "jobs"))),
    path("", include("webapp.prefill.urls")),
    path("v1/", include("webapp.prefill.api_urls")),
]
