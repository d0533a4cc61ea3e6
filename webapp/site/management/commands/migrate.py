"""`manage.py migrate`, which leaves a database alone that a version before 0.1.0 has made."""

import sys
from typing import Any

from django.conf import settings
from django.core.management.commands import migrate
from django.db import connections

from webapp.site.old_database import refusal


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.SERVERS_ERROR and (why := refusal(connections[options["database"]])):
            self.stderr.write(f"meridian: {why}")
            sys.exit(2)  # bad input: the supervisor says the line, and stops
        super().handle(*args, **options)
