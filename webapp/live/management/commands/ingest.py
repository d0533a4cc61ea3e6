"""`manage.py ingest`: runs until SIGTERM or Ctrl-C."""

import asyncio
import signal
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError
from redis import RedisError
from redis.asyncio import Redis

from webapp.computations.claim import BrokerTaken, claim_broker
from webapp.live.ingest import Ingest


class Command(BaseCommand):
    help = "Write the reports of nodes to the database, and notify browsers."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            claim_broker()
        except BrokerTaken as error:
            self.stderr.write(f"meridian: {error}")
            sys.exit(2)
        except (RedisError, DatabaseError, OSError):
            pass  # it waits for both, and says so
        asyncio.run(_main())


async def _main() -> None:
    client = Redis.from_url(
        settings.VALKEY_URL,
        decode_responses=True,
        encoding_errors="replace",  # what a node sends need not be UTF-8
        socket_connect_timeout=3,
        socket_timeout=10,
    )
    ingest = Ingest(client)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ingest.stop.set)
    try:
        await ingest.run()
    finally:
        await client.aclose()
