from django.apps import AppConfig

from webapp.common import parts, search
from webapp.common.navigation import Entry, register


class PlanningConfig(AppConfig):
    name = "webapp.planning"

    def ready(self) -> None:
        from webapp.accounts.models import READERS
        from webapp.computations import kinds
        from webapp.computations.models import ComputationKind
        from webapp.planning.archive import PARTS
        from webapp.planning.models import Plan
        from webapp.planning.search import KINDS
        from webapp.planning.work import compare_with_data, compute_plan, refine_plan

        kinds.register(
            kinds.Kind(name=ComputationKind.PLAN, work=compute_plan),
            kinds.Kind(name=ComputationKind.REFINE, work=refine_plan, gives_way=True),
            kinds.Kind(name=ComputationKind.CROSS_DC, work=compare_with_data),
        )
        parts.register(*PARTS)
        register(
            Entry(
                order=20,
                name="plans",
                label="Plans",
                address="planning:plan-list",
                roles=READERS,
                rows=lambda user: Plan.objects.visible_to(user).current(),
            )
        )
        search.register(*KINDS)
