"""The audit row that every service writes."""

from typing import Any

import structlog
from django.db import models, transaction

from webapp.accounts.models import AuditEntry, Team


def record(
    actor: Any, verb: str, thing: models.Model, *, team: Team | None,
    before: dict[str, Any] | None = None, after: dict[str, Any] | None = None, message: str = "",
) -> AuditEntry:  # fmt: skip
    """Write the audit row of a change. Call it inside the transaction that makes the change.

    `before` and `after` hold the values that differ, as JSON: None before a creation, None after a deletion.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("an audit row belongs in the transaction of its change")
    return AuditEntry.objects.create(
        actor=actor,
        team=team,
        verb=verb,
        object_type=thing._meta.model_name or "",
        object_id="" if thing.pk is None else str(thing.pk),
        object_label=str(thing)[:200],
        before=before,
        after=after,
        request_id=request_id(),
        message=message[:500],
    )


def request_id() -> str:
    """The id of the HTTP request, or of the control task, that runs now; empty in a command."""
    bound = structlog.contextvars.get_contextvars()
    return str(bound.get("request_id") or bound.get("task_id") or "")[:64]
