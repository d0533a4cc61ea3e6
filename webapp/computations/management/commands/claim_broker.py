"""`manage.py claim_broker`: make the broker this site's; `migrate` and ingest do so at each start."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from webapp.computations.claim import BrokerTaken, claim_broker


class Command(BaseCommand):
    help = "Make the broker this site's. A broker that another site uses is refused, or taken with --take."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--take", action="store_true", help="take it from another site, which is gone")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            claim_broker(take=options["take"])
        except BrokerTaken as error:
            self.stderr.write(f"meridian: {error}")
            sys.exit(2)
        self.stdout.write("The broker is this site's.")
