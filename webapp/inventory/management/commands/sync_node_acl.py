"""`manage.py sync_node_acl`: give the broker the users of all enrolled nodes again, from the database."""

from typing import Any

from django.core.management.base import BaseCommand

from webapp.common.broker import client
from webapp.inventory.services import sync_acl


class Command(BaseCommand):
    help = "Write the broker users of all enrolled nodes again; for a broker that has lost them."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"{sync_acl(client())} nodes")
