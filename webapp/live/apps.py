from django.apps import AppConfig

from webapp.common import work


class LiveConfig(AppConfig):
    name = "webapp.live"

    def ready(self) -> None:
        from webapp.live.flows import flows_now

        work.register_flows(flows_now)
