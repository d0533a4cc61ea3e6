from django.apps import AppConfig

from webapp.common import additions, dependants, parts, search, sources, work
from webapp.common.navigation import Entry, register


class JobsConfig(AppConfig):
    name = "webapp.jobs"

    def ready(self) -> None:
        from webapp.accounts.models import READERS
        from webapp.computations import kinds
        from webapp.computations.models import ComputationKind
        from webapp.jobs import plan_page
        from webapp.jobs.additions import ADDITIONS, end_runs_on, offered_to_comparison, runs_of
        from webapp.jobs.archive import PARTS
        from webapp.jobs.models import Run
        from webapp.jobs.search import KINDS
        from webapp.jobs.selectors import held, runs_on
        from webapp.jobs.work import find_schedule

        parts.register(*PARTS)
        additions.register(*ADDITIONS, *plan_page.ADDITIONS)
        dependants.register(dependants.Dependants(order=10, kind="run", rows=runs_of))
        sources.register(sources.Source(form="comparison", parameter="run", values=offered_to_comparison))
        kinds.register(kinds.Kind(name=ComputationKind.RUN, work=find_schedule))
        work.register_work(work.Work(held=held, on=runs_on, end=end_runs_on))
        register(
            Entry(
                order=25,
                name="runs",
                label="Runs",
                address="jobs:run-list",
                roles=READERS,
                rows=lambda user: Run.objects.visible_to(user).open(),
            )
        )
        search.register(*KINDS)
