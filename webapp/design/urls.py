from django.urls import path

from webapp.design import network_page, papers_page, swap_page

app_name = "design"
urlpatterns = [
    path("network/", network_page.page, name="network"),
    path("swap/", swap_page.page, name="swap"),
    path("papers/", papers_page.papers, name="papers"),
    path("papers/run/", papers_page.run, name="papers-run"),
    path("papers/computing/", papers_page.computing, name="papers-computing"),
    path("papers/<uuid:pk>/cancel/", papers_page.cancel, name="papers-cancel"),
    path("papers/<slug:name>/", papers_page.paper, name="paper"),
]
