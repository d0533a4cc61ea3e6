"""Changes of users, teams and roles, and the audit row that every service writes."""

from typing import Any

import structlog
from django.db import models, transaction

from webapp.accounts.models import AuditEntry, Membership, Role, Team, User


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
        object_id=str(thing.pk),
        object_label=str(thing)[:200],
        before=before,
        after=after,
        request_id=str(structlog.contextvars.get_contextvars().get("request_id") or "")[:64],
        message=message[:500],
    )


@transaction.atomic
def ensure_team(name: str, *, actor: Any = None) -> Team:
    """The team called `name`, made if there is none."""
    team, created = Team.objects.get_or_create(name=name)
    if created:
        record(actor, "create", team, team=team, after={"name": name})
    return team


@transaction.atomic
def ensure_user(username: str, password: str, *, superuser: bool = False, actor: Any = None) -> User:
    """The user called `username`, made with `password` if there is none (an existing one keeps theirs)."""
    user = User.objects.filter(username=username).first()
    if user is None:
        user = User.objects.create_user(username, password=password, is_superuser=superuser)
        record(actor, "create", user, team=None, after={"username": username, "is_superuser": superuser})
    return user


@transaction.atomic
def set_role(user: User, team: Team, role: Role, *, actor: Any = None) -> Membership:
    """Give `user` the `role` in `team`, in place of the one they had."""
    membership, created = Membership.objects.select_for_update().get_or_create(
        user=user, team=team, defaults={"role": role}
    )
    if created or membership.role != role:
        before = None if created else membership.role
        membership.role = role
        membership.save(update_fields=["role"])
        record(
            actor, "set-role", membership, team=team,
            before=None if before is None else {"role": before}, after={"role": str(role)},
        )  # fmt: skip
    return membership
