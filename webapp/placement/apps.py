from django.apps import AppConfig

from webapp.common import additions, search
from webapp.common.navigation import Entry, register


class PlacementConfig(AppConfig):
    name = "webapp.placement"

    def ready(self) -> None:
        from webapp.accounts.models import READERS
        from webapp.computations import kinds
        from webapp.computations.models import ComputationKind
        from webapp.placement.additions import ADDITIONS
        from webapp.placement.pages import pages
        from webapp.placement.work import place_devices

        register(
            Entry(
                order=40,
                name="placement",
                label="Placement",
                address="placement:placement-list",
                roles=READERS,
            )
        )
        additions.register(*ADDITIONS)
        kinds.register(kinds.Kind(name=ComputationKind.PLACEMENT, work=place_devices))
        search.register(pages.search)
