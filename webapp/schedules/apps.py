from django.apps import AppConfig

from webapp.common import additions, search
from webapp.common.navigation import Entry, register


class SchedulesConfig(AppConfig):
    name = "webapp.schedules"

    def ready(self) -> None:
        from webapp.accounts.models import READERS
        from webapp.computations import kinds
        from webapp.computations.models import ComputationKind
        from webapp.schedules.pages import pages
        from webapp.schedules.work import compare_schedules, sweep_parameter

        register(
            Entry(
                order=30,
                name="schedules",
                label="Schedules",
                address="schedules:schedule-list",
                roles=READERS,
            )
        )
        additions.register(
            additions.Addition(
                page="plan", order=10, name="schedules", templates={"actions": "schedules/plan_action.html"}
            )
        )
        kinds.register(
            kinds.Kind(name=ComputationKind.SCHEDULES, work=compare_schedules),
            kinds.Kind(name=ComputationKind.SWEEP, work=sweep_parameter),
        )
        search.register(pages.search)
