from django.urls import path

from webapp.design import network_page, swap_page

app_name = "design"
urlpatterns = [
    path("network/", network_page.page, name="network"),
    path("swap/", swap_page.page, name="swap"),
]
