"""What nodes said and was refused: counted by node, with the last reason, for an operator."""

from collections.abc import Mapping

import structlog
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from webapp.inventory.models import Node
from webapp.live.models import RefusedEvents

log = structlog.get_logger(__name__)
Refusals = dict[str, tuple[int, str]]  # node → how many events, and why the last of them


def add_refusal(refused: Refusals, node: str, why: str) -> None:
    """Count one more event of `node`."""
    refused[node] = (refused[node][0] + 1 if node in refused else 1, why)


@transaction.atomic
def record_refusals(refused: Mapping[str, tuple[int, str]]) -> None:
    """Add to what was refused of each node, and log it; of a node that is gone it is only logged."""
    ids = dict(Node.objects.filter(name__in=refused).values_list("name", "pk"))
    for node, (count, why) in sorted(refused.items()):
        log.warning("events refused", node=node, count=count, last=why)
        if node in ids:
            RefusedEvents.objects.get_or_create(node_id=ids[node])
            RefusedEvents.objects.filter(node=ids[node]).update(
                count=F("count") + count, why=why.replace("\0", "")[:300], at=timezone.now()
            )
