"""Logins and the sessions that they begin; what was tried and refused."""

from datetime import timedelta
from functools import partial

from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import transaction
from django.utils import timezone

from webapp.accounts.models import AuditEntry, LoginSession, User
from webapp.accounts.services.audit import record
from webapp.common import broker

UNKNOWN = "an unknown name"  # what was typed is not kept: it may be a password
QUIET = timedelta(minutes=1)  # one row for all that an address tries on unknown names meanwhile
QUIET_LOCK = settings.AXES_COOLOFF_TIME  # one row for a lock, however often its door is tried


@transaction.atomic
def note_login(user: User, session: SessionBase, *, address: str | None, browser: str) -> LoginSession:
    """A login began `session`."""
    if session.session_key is None:
        session.create()
    details = {"user": user, "address": address, "browser": browser[:200], "since": timezone.now()}
    began, _ = LoginSession.objects.update_or_create(session_key=session.session_key, defaults=details)
    record(user, "login", user, team=None, message=f"From {address}.")
    return began


@transaction.atomic
def note_logout(user: User, session_key: str | None) -> None:
    """`user` ended a session."""
    LoginSession.objects.filter(user=user, session_key=session_key or "").delete()
    record(user, "logout", user, team=None)


@transaction.atomic
def note_failed_login(username: str, *, address: str | None, locked: bool) -> AuditEntry | None:
    """A wrong password for `username`; `locked` where it was one too many, or came after that.

    Returns None where a row says it already: what tries a locked door for hours must not fill the audit.
    """
    user = User.objects.filter(username=username).first()
    verb = "lock" if locked else "login-failed"
    message = f"Too many wrong passwords from {address}." if locked else f"From {address}."
    thing = user or User(username=UNKNOWN)
    same = AuditEntry.objects.filter(
        verb=verb, object_type="user", object_id=str(thing.pk or ""), message=message
    )
    quiet = QUIET_LOCK if locked else QUIET
    if (locked or user is None) and same.filter(at__gt=timezone.now() - quiet).exists():
        return None
    return record(None, verb, thing, team=None, message=message)


@transaction.atomic
def end_other_sessions(user: User, session_key: str | None) -> int:
    """Log `user` out everywhere but in the session `session_key`; returns how many sessions ended."""
    ended = drop_sessions(user, keep=session_key)
    record(user, "end-sessions", user, team=None, message=f"{ended} other sessions ended.")
    return ended


def drop_sessions(user: User, *, keep: str | None = None) -> int:
    """Delete the sessions of `user` but `keep`; part of services that write the row. Returns how many."""
    others = LoginSession.objects.filter(user=user).exclude(session_key=keep or "")
    keys = list(others.values_list("session_key", flat=True))
    ended, _ = Session.objects.filter(session_key__in=keys).delete()
    others.delete()
    close_sockets(user)
    return ended


def close_sockets(user: User) -> None:
    """Once the transaction is committed, have the open sockets of `user` ask again what they may see; part of
    services that take something away."""
    transaction.on_commit(partial(broker.announce_rights, user.pk))


@transaction.atomic
def forget_expired() -> int:
    """Delete sessions that have run out, what is known of their logins, and wrong passwords that no longer
    lock anybody out; returns how many sessions."""
    ended, _ = Session.objects.filter(expire_date__lte=timezone.now()).delete()
    LoginSession.objects.exclude(session_key__in=Session.objects.values("session_key")).delete()
    AccessAttempt.objects.filter(attempt_time__lte=timezone.now() - QUIET_LOCK).delete()
    return ended


@transaction.atomic
def move_session(user: User, old_key: str | None, new_key: str | None) -> None:
    """A session goes on under another key, as Django gives it one after a change of the password."""
    LoginSession.objects.filter(user=user, session_key=old_key or "").update(session_key=new_key or "")
