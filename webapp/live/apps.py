from django.apps import AppConfig

from webapp.common import additions, parts, sources, work


class LiveConfig(AppConfig):
    name = "webapp.live"

    def ready(self) -> None:
        from webapp.live.additions import ADDITIONS
        from webapp.live.archive import PARTS
        from webapp.live.flows import flows_now
        from webapp.live.measured_run import offered_to_plan

        parts.register(*PARTS)
        additions.register(*ADDITIONS)
        sources.register(sources.Source(form="plan", parameter="run", values=offered_to_plan))
        work.register_flows(flows_now)
