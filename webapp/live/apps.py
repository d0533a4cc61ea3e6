from django.apps import AppConfig

from webapp.common import additions, parts, sources, work


class LiveConfig(AppConfig):
    name = "webapp.live"

    def ready(self) -> None:
        from webapp.live.archive import PARTS
        from webapp.live.flows import flows_now
        from webapp.live.measured_run import offered_to_plan

        parts.register(*PARTS)
        additions.register(
            additions.Addition(
                page="plan-form", order=10, name="measured", templates={"above": "live/measured.html"}
            )
        )
        sources.register(sources.Source(form="plan", parameter="run", values=offered_to_plan))
        work.register_flows(flows_now)
