"""Invitations: one-time links into a team."""

import hashlib
import secrets
from datetime import timedelta
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from webapp.accounts.models import ADMINS, Invitation, Membership, Role, Team, User
from webapp.accounts.permissions import may, require
from webapp.accounts.services.audit import record

VALID = timedelta(days=7)
RANKED = (Role.TENANT, Role.VIEWER, Role.OPERATOR, Role.ADMIN)  # who is invited does not lose a higher role


def token_hash(token: str) -> str:
    """What the database keeps of a token or key: it is random, so that a plain hash does."""
    return hashlib.sha256(token.encode()).hexdigest()


@transaction.atomic
def invite(actor: Any, team: Team, *, email: str, role: Role) -> tuple[Invitation, str]:
    """Make an invitation into `team`; returns it and its token, which is shown once and kept nowhere.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of the team.
    ValidationError
        The address is none, the role unknown, or it has an open invitation or is a member already.
    """
    require(actor, team, ADMINS)
    Team.objects.select_for_update().get(pk=team.pk)
    token = secrets.token_urlsafe(32)
    invitation = Invitation(
        team=team,
        email=email.strip(),
        role=role,
        invited_by=actor,
        token_sha256=token_hash(token),
        expires_at=timezone.now() + VALID,
    )
    invitation.full_clean(exclude=["invited_by", "accepted_by", "accepted_at", "revoked_at"])
    if Invitation.objects.open().filter(team=team, email__iexact=invitation.email).exists():
        raise ValidationError({"email": "This address has an open invitation. Revoke it first."})
    if Membership.objects.filter(team=team, user__email__iexact=invitation.email).exists():
        raise ValidationError({"email": "A member of the team has this address. Change their role instead."})
    invitation.save()
    record(actor, "invite", invitation, team=team, after={"email": invitation.email, "role": str(role)})
    return invitation, token


@transaction.atomic
def revoke_invitation(actor: Any, invitation: Invitation) -> Invitation:
    """Make the link of an open invitation worthless; one that is over stays as it is."""
    require(actor, invitation.team, ADMINS)
    invitation = Invitation.objects.select_for_update().get(pk=invitation.pk)
    if not invitation.accepted_at and not invitation.revoked_at:
        _revoke(actor, invitation)
    return invitation


def _revoke(actor: Any, invitation: Invitation, message: str = "") -> None:
    invitation.revoked_at = timezone.now()
    invitation.save(update_fields=["revoked_at"])
    record(
        actor,
        "revoke",
        invitation,
        team=invitation.team,
        before={"revoked_at": None},
        after={"revoked_at": invitation.revoked_at.isoformat()},
        message=message,
    )


def revoke_invitations_of(actor: Any, user: User, team: Team | None = None) -> int:
    """Revoke the open invitations that `user` has made, into `team` or into all teams; returns how many.

    Part of services that take from `user` the right to invite.
    """
    invitations = Invitation.objects.open().select_for_update(of=("self",)).filter(invited_by=user)
    rows = list((invitations if team is None else invitations.filter(team=team)).select_related("team"))
    for invitation in rows:
        _revoke(actor, invitation, f"{user}, who made it, may not invite any more.")
    return len(rows)


def open_invitation(token: str) -> Invitation | None:
    """The invitation that `token` opens, while it does and whoever made it may invite."""
    rows = Invitation.objects.open().filter(token_sha256=token_hash(token))
    invitation = rows.select_related("team", "invited_by").first()
    return invitation if invitation is not None and _still_meant(invitation) else None


def _still_meant(invitation: Invitation) -> bool:
    """Whether who made it is an admin still: nobody gives a right that they do not have."""
    by = invitation.invited_by
    return by is None or (by.is_active and may(by, invitation.team, ADMINS))


@transaction.atomic
def accept_invitation(token: str, user: User) -> Membership:
    """Make `user` a member of the team that `token` invites into. Once.

    A role that the user has in the team already is replaced only by a higher one.

    Raises
    ------
    ValidationError
        The link is used up, revoked or too old.
    """
    invitation = _take(token)
    membership, created = Membership.objects.select_for_update().get_or_create(
        user=user, team=invitation.team, defaults={"role": invitation.role}
    )
    before = None if created else {"role": membership.role}
    if not created and RANKED.index(invitation.role) > RANKED.index(membership.role):
        membership.role = invitation.role
        membership.save(update_fields=["role"])
    invitation.accepted_at, invitation.accepted_by = timezone.now(), user
    invitation.save(update_fields=["accepted_at", "accepted_by"])
    record(
        user,
        "accept",
        invitation,
        team=invitation.team,
        before=before,
        after={"user": user.username, "role": membership.role},
    )
    return membership


@transaction.atomic
def join_with_new_account(token: str, *, username: str, password: str, **names: str) -> User:
    """Make an account for whom `token` invites, and a member of it.

    Raises
    ------
    ValidationError
        The link is used up, revoked or too old; the name is taken; the password is too weak.
    """
    invitation = _take(token)
    user = User(username=username, email=invitation.email, **names)
    user.full_clean(exclude=["password"])
    validate_password(password, user)
    user.set_password(password)
    user.save()
    record(user, "create", user, team=None, after={"username": username, "email": user.email})
    accept_invitation(token, user)
    return user


def _take(token: str) -> Invitation:
    """The open invitation of `token`, locked."""
    rows = Invitation.objects.select_for_update(of=("self",)).filter(token_sha256=token_hash(token))
    invitation = rows.select_related("team", "invited_by").first()
    if invitation is None or invitation.state != "open" or not _still_meant(invitation):
        raise ValidationError("This invitation was used, revoked, or is too old. Ask for a new one.")
    return invitation
