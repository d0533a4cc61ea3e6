"""`manage.py migrate`, which leaves a database alone that a version before 0.1.0 has made."""

import sys
from typing import Any

from django.conf import settings
from django.core.management.commands import migrate
from django.db import connections
from redis import RedisError

from webapp.computations.claim import BrokerTaken, claim_broker
from webapp.site.old_database import refusal

# Options with which the database is not brought up to date as a whole.
PARTLY = ("app_label", "plan", "check_unapplied", "run_syncdb", "prune")


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.SERVERS_ERROR and (why := refusal(connections[options["database"]])):
            self.stderr.write(f"meridian: {why}")
            sys.exit(2)  # bad input: the supervisor says the line, and stops
        super().handle(*args, **options)
        if settings.VALKEY_URL and not any(options.get(name) for name in PARTLY):
            self._claim()

    def _claim(self) -> None:
        """Stop here where another site uses the broker. Whoever needs one that does not answer says so."""
        try:
            claim_broker()
        except BrokerTaken as error:
            self.stderr.write(f"meridian: {error}")
            sys.exit(2)
        except (RedisError, OSError) as error:
            self.stderr.write(f"meridian: the broker was not asked whose it is: {type(error).__name__}")
