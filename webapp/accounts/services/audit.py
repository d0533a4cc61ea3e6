"""The audit row that every service writes."""

from typing import Any

from django.db import models, transaction

from webapp.accounts.models import AuditEntry, Team


def record(
    actor: Any,
    verb: str,
    thing: models.Model,
    *,
    team: Team | None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    message: str = "",
) -> AuditEntry:
    """Write the audit row of a change. Call it inside the transaction that makes the change.

    `before` and `after` hold the values that differ, as JSON: None before a creation, None after a deletion.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("an audit row belongs in the transaction of its change")
    return AuditEntry.objects.write(
        actor, verb, thing, team=team, before=before, after=after, message=message
    )
