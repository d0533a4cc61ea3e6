from django.apps import AppConfig

from webapp.common import dependants
from webapp.common.navigation import Entry, register


class PlanningConfig(AppConfig):
    name = "webapp.planning"

    def ready(self) -> None:
        from webapp.accounts.models import READERS
        from webapp.planning.models import Plan
        from webapp.planning.selectors import plans_that_name

        dependants.register(dependants.Dependants(order=40, kind="plan", rows=plans_that_name))
        register(
            Entry(
                order=20, name="plans", label="Plans", address="planning:plan-list", roles=READERS,
                rows=Plan.objects.visible_to,
            ),
            Entry(
                order=30, name="schedules", label="Schedules", address="schedules:schedule-list",
                roles=READERS,
            ),
            Entry(
                order=40, name="placement", label="Placement", address="placement:placement-list",
                roles=READERS,
            ),
            Entry(order=50, name="network", label="Network design", address="design:network", roles=READERS),
            Entry(order=60, name="swap", label="Swap plan", address="design:swap", roles=READERS),
        )  # fmt: skip
