from django.apps import AppConfig

from webapp.common.navigation import Entry, register


class DesignConfig(AppConfig):
    name = "webapp.design"

    def ready(self) -> None:
        from webapp.accounts.models import READERS
        from webapp.computations import kinds
        from webapp.computations.models import ComputationKind
        from webapp.design.papers_work import reproduce

        register(
            Entry(order=50, name="network", label="Network design", address="design:network", roles=READERS),
            Entry(order=60, name="swap", label="Swap plan", address="design:swap", roles=READERS),
            Entry(order=65, name="papers", label="Papers", address="design:papers", roles=READERS),
        )
        kinds.register(kinds.Kind(name=ComputationKind.PAPERS, work=reproduce, gives_way=True))
