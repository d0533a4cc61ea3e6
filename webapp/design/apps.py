from django.apps import AppConfig

from webapp.common.navigation import Entry, register


class DesignConfig(AppConfig):
    name = "webapp.design"

    def ready(self) -> None:
        from webapp.accounts.models import READERS

        register(
            Entry(order=50, name="network", label="Network design", address="design:network", roles=READERS),
            Entry(order=60, name="swap", label="Swap plan", address="design:swap", roles=READERS),
        )
