"""Passwords: changed by their owner, reset through a one-time link."""

from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.db import transaction
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from webapp.accounts.models import User
from webapp.accounts.permissions import require_manager
from webapp.accounts.reset_links import reset_tokens
from webapp.accounts.services.audit import record
from webapp.accounts.services.sessions import drop_sessions


@transaction.atomic
def change_password(user: User, password: str, *, keep_session: str | None = None) -> User:
    """Give `user` a new password, chosen by themselves; all their sessions but `keep_session` end.

    Raises
    ------
    ValidationError
        The password is too weak (AUTH_PASSWORD_VALIDATORS).
    """
    return _set(user, password, keep_session, "change-password")


@transaction.atomic
def reset_password(user: User, password: str) -> User:
    """Give `user` the password that they chose over a one-time link; all their sessions end."""
    return _set(user, password, None, "reset-password")


def _set(user: User, password: str, keep_session: str | None, verb: str) -> User:
    validate_password(password, user)
    user.set_password(password)
    user.save(update_fields=["password"])
    ended = drop_sessions(user, keep=keep_session)
    record(user, verb, user, team=None, message=f"{ended} other sessions ended." if ended else "")
    return user


@transaction.atomic
def make_reset_link(actor: Any, user: User) -> tuple[str, str]:
    """A one-time link for setting a new password of `user`: (uid, token) of `accounts:password-set`.

    It works once, for PASSWORD_RESET_TIMEOUT, and as long as `actor` may manage the account
    (webapp.accounts.reset_links). Nothing of it is kept.

    Raises
    ------
    PermissionDenied
        `actor` is not an admin of every team that `user` is in.
    """
    require_manager(actor, user)
    record(actor, "reset-link", user, team=None, message="A one-time link for a new password was made.")
    return urlsafe_base64_encode(force_bytes(user.pk)), reset_tokens.make_for(actor, user)


@transaction.atomic
def note_reset_mail(user: User) -> None:
    """A link for setting a new password was asked for at the login page and sent to the account's address."""
    record(None, "reset-mail", user, team=None)
