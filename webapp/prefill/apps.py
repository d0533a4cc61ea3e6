from django.apps import AppConfig

from webapp.common import additions, dependants, parts, search
from webapp.common.navigation import Entry, register


class PrefillConfig(AppConfig):
    name = "webapp.prefill"

    def ready(self) -> None:
        from webapp.accounts.models import OPERATORS, READERS, Role
        from webapp.computations import kinds
        from webapp.computations.models import ComputationKind
        from webapp.prefill.models import Tenancy
        from webapp.prefill.replays.pages import PARTS, pages
        from webapp.prefill.replays.work import replay_requests
        from webapp.prefill.search import KINDS
        from webapp.prefill.selectors import tenancies_in

        additions.register(
            additions.Addition(
                page="run", order=10, name="prefill", templates={"links": "prefill/run_link.html"}
            )
        )
        dependants.register(dependants.Dependants(order=50, kind="tenancy", rows=tenancies_in))
        kinds.register(kinds.Kind(name=ComputationKind.REPLAY, work=replay_requests))
        parts.register(*PARTS)
        everybody = [*READERS, Role.TENANT]
        register(
            Entry(
                order=80, name="prefill-live", label="Prefill live", address="prefill:live", roles=OPERATORS
            ),
            Entry(order=82, name="replays", label="Replays", address="prefill:replay-list", roles=READERS),
            Entry(order=85, name="prefill", label="Prefill", address="prefill:home", roles=[Role.TENANT]),
            Entry(
                order=90,
                name="tenancies",
                label="Tenancies",
                address="prefill:tenancy-list",
                roles=everybody,
                rows=lambda user: Tenancy.objects.visible_to(user).to_decide(),
            ),
            Entry(order=100, name="keys", label="Keys", address="prefill:key-list", roles=everybody),
            Entry(order=110, name="usage", label="Usage", address="prefill:usage-list", roles=everybody),
        )
        search.register(pages.search, *KINDS)
