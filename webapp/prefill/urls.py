from django.urls import include, path

from webapp.prefill.replays.pages import pages
from webapp.prefill.views import decisions, home, keys, live, replays, tenancies, usage

app_name = "prefill"
REPLAYS = [
    path("", replays.replay_list, name="replay-list"),
    *pages.urls(),
    path("new/", replays.replay_create, name="replay-create"),
    path("<uuid:pk>/", replays.replay_detail, name="replay-detail"),
    path("<uuid:pk>/document.json", replays.replay_document, name="replay-document"),
    path("<uuid:pk>/<slug:table>.csv", replays.replay_table, name="replay-table"),
]
urlpatterns = [
    path("prefill/", home.home, name="home"),
    path("prefill/live/", live.live, name="live"),
    path("prefill/replays/", include(REPLAYS)),
    path("tenancies/", tenancies.tenancy_list, name="tenancy-list"),
    path("tenancies/new/", tenancies.tenancy_request, name="tenancy-request"),
    path("tenancies/<int:pk>/", tenancies.tenancy_detail, name="tenancy-detail"),
    path("tenancies/<int:pk>/review/", decisions.tenancy_review, name="tenancy-review"),
    path("tenancies/<int:pk>/suspend/", decisions.tenancy_suspend, name="tenancy-suspend"),
    path("tenancies/<int:pk>/resume/", decisions.tenancy_resume, name="tenancy-resume"),
    path("tenancies/<int:pk>/renew/", tenancies.tenancy_renew, name="tenancy-renew"),
    path("tenancies/<int:pk>/withdraw/", tenancies.tenancy_withdraw, name="tenancy-withdraw"),
    path("keys/", keys.key_list, name="key-list"),
    path("keys/new/", keys.key_create, name="key-create"),
    path("keys/<int:pk>/replace/", keys.key_rotate, name="key-rotate"),
    path("keys/<int:pk>/revoke/", keys.key_revoke, name="key-revoke"),
    path("usage/", usage.usage_list, name="usage-list"),
    path("usage/statement/", usage.usage_statement, name="usage-statement"),
    path("usage/export.<str:kind>", usage.usage_export, name="usage-export"),
]
