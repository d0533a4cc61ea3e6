from django.apps import AppConfig

from webapp.common.navigation import Entry, register


class JobsConfig(AppConfig):
    name = "webapp.jobs"

    def ready(self) -> None:
        from webapp.accounts.models import READERS
        from webapp.jobs.models import Run

        register(
            Entry(
                order=70, name="runs", label="Runs", address="jobs:run-list", roles=READERS,
                rows=lambda user: Run.objects.visible_to(user).open(),
            )
        )  # fmt: skip
