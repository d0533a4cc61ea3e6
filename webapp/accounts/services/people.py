"""Accounts: made, described, switched off and on, let in again after too many wrong passwords."""

from typing import Any

from axes.utils import reset as forget_attempts
from django.db import transaction

from webapp.accounts import limits
from webapp.accounts.models import Membership, Role, User
from webapp.accounts.permissions import require_manager
from webapp.accounts.services.audit import record
from webapp.accounts.services.invitations import revoke_invitations_of
from webapp.accounts.services.sessions import drop_sessions
from webapp.accounts.services.teams import keep_an_admin

PROFILE = ("first_name", "last_name", "email", "time_zone")


@transaction.atomic
def ensure_user(username: str, password: str) -> User:
    """The user called `username`, made with `password` if there is none (an existing one keeps theirs)."""
    user = User.objects.filter(username=username).first()
    if user is None:
        user = User.objects.create_user(username, password=password)
        record(None, "create", user, team=None, after={"username": username, "is_superuser": False})
    return user


@transaction.atomic
def change_profile(user: User, **values: str) -> User:
    """Change one's own names, e-mail and time zone (PROFILE).

    Raises
    ------
    ValidationError
        A value is wrong.
    """
    user = User.objects.select_for_update().get(pk=user.pk)
    before = {name: getattr(user, name) for name in values if getattr(user, name) != values[name]}
    for name in before:
        if name not in PROFILE:
            raise ValueError(f"{name}: must be one of {', '.join(PROFILE)}")
        setattr(user, name, values[name])
    if before:
        user.full_clean(exclude=["password"])
        user.save(update_fields=list(before))
        record(user, "change", user, team=None, before=before, after={name: values[name] for name in before})
    return user


@transaction.atomic
def deactivate(actor: Any, user: User) -> User:
    """Switch an account off: it is logged out everywhere and cannot log in. What it did stays.

    Its open invitations are revoked, in all teams. Its join commands, links for new passwords and API keys
    open nothing while it is off.

    Raises
    ------
    PermissionDenied
        `actor` is not an admin of every team that `user` is in.
    LastAdmin
        A team would have no active admin any more.
    """
    require_manager(actor, user)
    for membership in Membership.objects.filter(user=user, role=Role.ADMIN).select_related("team"):
        keep_an_admin(user, membership.team)
    revoke_invitations_of(actor, user)
    return _set_active(actor, user, active=False)


@transaction.atomic
def activate(actor: Any, user: User) -> User:
    """Switch an account on again, in the roles that it had."""
    require_manager(actor, user)
    return _set_active(actor, user, active=True)


def _set_active(actor: Any, user: User, *, active: bool) -> User:
    user = User.objects.select_for_update().get(pk=user.pk)
    if user.is_active != active:
        user.is_active = active
        user.save(update_fields=["is_active"])
        ended = 0 if active else drop_sessions(user)
        record(
            actor,
            "activate" if active else "deactivate",
            user,
            team=None,
            before={"is_active": not active},
            after={"is_active": active},
            message=f"{ended} sessions ended." if ended else "",
        )
    return user


@transaction.atomic
def unlock(actor: Any, user: User) -> int:
    """Forget the wrong passwords typed for `user`; returns from how many addresses and browsers they came."""
    require_manager(actor, user)
    forgotten = forget_attempts(username=user.username)
    limits.forget_name(user.username)
    record(actor, "unlock", user, team=None, message=f"{forgotten} records of wrong passwords forgotten.")
    return forgotten
