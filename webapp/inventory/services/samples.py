"""The first samples of a run: asked of the agent that would read them, answered in one event."""

import secrets
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from engine.job.events.node import Samples
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.dispatch import BrokerDown, Send, send_task
from webapp.inventory.models import Node, SamplePreview

TASK = "workers.preview_samples"
KEPT = timedelta(days=1)  # an answer holds text of somebody's files


@transaction.atomic
def preview_samples(
    actor: Any, node: Node, document: dict[str, Any], *, reads: str, dc: str, send: Send | None = None
) -> SamplePreview:
    """Have the agent of `node` read the first samples of a job, for `actor` alone.

    Parameters
    ----------
    document : of the job.
    reads : what of it is read, in words.
    dc : name of the data centre in the document that the node stands for.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the node's team.
    """
    require(actor, node.dc.team)
    SamplePreview.objects.filter(asked_at__lt=timezone.now() - KEPT).delete()
    row = SamplePreview.objects.create(
        preview=secrets.token_hex(16), node=node, reads=reads[:600], asked_by=actor
    )
    record(actor, "preview", node, team=node.dc.team, after={"reads": row.reads})
    transaction.on_commit(lambda: _ask(row, document, dc, send))
    return row


def _ask(row: SamplePreview, document: dict[str, Any], dc: str, send: Send | None) -> None:
    try:
        (send or send_task)(row.node.name, TASK, {"preview": row.preview, "job": document, "dc": dc})
    except BrokerDown:
        SamplePreview.objects.filter(pk=row.pk, at=None).update(
            at=timezone.now(), error="The broker does not answer, so the node was not asked."
        )


@transaction.atomic
def record_samples(name: str, event: Samples) -> bool:
    """Keep what node `name` has read; returns whether it was asked and had not answered yet.

    No audit row: nobody decided anything.
    """
    rows = SamplePreview.objects.select_for_update(of=("self",))
    row = rows.filter(preview=event.preview, node__name=name, at=None).first()
    if row is None:
        return False
    row.at = timezone.now()
    row.samples = [sample.model_dump(mode="json") for sample in event.samples]
    row.error = event.error or ("" if row.samples else "The node gave no reason.")
    row.save()
    return True
