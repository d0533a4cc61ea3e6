from django.apps import AppConfig

from webapp.common import parts, search
from webapp.common.navigation import Entry, register


class TracesConfig(AppConfig):
    name = "webapp.traces"

    def ready(self) -> None:
        from webapp.accounts.models import READERS
        from webapp.computations import kinds
        from webapp.computations.models import ComputationKind
        from webapp.traces.pages import PARTS, pages
        from webapp.traces.work import analyze_trace, answer_what_ifs

        register(
            Entry(order=67, name="traces", label="Traces", address="traces:trace-list", roles=READERS),
        )
        kinds.register(
            kinds.Kind(name=ComputationKind.TRACE, work=analyze_trace),
            kinds.Kind(name=ComputationKind.WHAT_IF, work=answer_what_ifs),
        )
        parts.register(*PARTS)
        search.register(pages.search)
