"""`manage.py seed_demo`: users, data centres, nodes and links of the demo, and its run. Safe to repeat."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.site.demo import seed


class Command(BaseCommand):
    help = "Create what the demo lacks, enrol its nodes and launch its run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-sell", action="store_true", help="its run only trains")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.PRODUCTION:
            raise CommandError("the demo's passwords are known to everyone: not in production")
        run = seed(settings.VAR, sells=not options["no_sell"])
        self.stdout.write(f"demo: {run} {run.state.label.lower()}")
