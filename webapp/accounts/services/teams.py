"""Teams, and who has which role in them."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from webapp.accounts.models import ADMINS, Membership, Role, Team, User
from webapp.accounts.permissions import require, require_somewhere
from webapp.accounts.services.audit import record
from webapp.accounts.services.invitations import revoke_invitations_of
from webapp.accounts.services.sessions import close_sockets


class LastAdmin(ValidationError):
    """A change that would leave a team without anybody who may administer it."""

    def __init__(self, user: User, team: Team) -> None:
        super().__init__(f"{user} is the last active admin of {team}. Make another member an admin first.")


@transaction.atomic
def ensure_team(name: str) -> Team:
    """The team called `name`, made if there is none."""
    team, created = Team.objects.get_or_create(name=name)
    if created:
        record(None, "create", team, team=team, after={"name": name})
    return team


@transaction.atomic
def create_team(actor: Any, name: str) -> Team:
    """Make a team; `actor`, an admin of another team or a superuser, becomes its first admin.

    Raises
    ------
    PermissionDenied
        `actor` is an admin nowhere.
    ValidationError
        The name is taken, empty or too long.
    """
    require_somewhere(actor, ADMINS)
    team = Team(name=name.strip())
    team.full_clean()
    team.save()
    record(actor, "create", team, team=team, after={"name": team.name})
    _give(actor, team, Role.ADMIN, actor)
    return team


@transaction.atomic
def rename_team(actor: Any, team: Team, name: str) -> Team:
    """Call `team` by another name.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of it.
    ValidationError
        The name is taken, empty or too long.
    """
    require(actor, team, ADMINS)
    team = Team.objects.select_for_update().get(pk=team.pk)
    before, team.name = team.name, name.strip()
    team.full_clean()
    if team.name != before:
        team.save(update_fields=["name"])
        record(actor, "rename", team, team=team, before={"name": before}, after={"name": team.name})
    return team


@transaction.atomic
def set_role(user: User, team: Team, role: Role, *, actor: Any = None) -> Membership:
    """Give `user` the `role` in `team`, in place of the one they had.

    Who is admin no longer leaves no open invitations behind: they are revoked.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of the team.
    LastAdmin
        It would have no active admin any more.
    """
    require(actor, team, ADMINS)
    if role not in Role.values:
        raise ValidationError({"role": f"{role!r}: must be one of {', '.join(Role.values)}."})
    if role != Role.ADMIN:
        keep_an_admin(user, team)
        if not user.is_superuser:
            revoke_invitations_of(actor, user, team)
    return _give(user, team, role, actor)


def _give(user: User, team: Team, role: Role, actor: Any) -> Membership:
    membership, created = Membership.objects.select_for_update().get_or_create(
        user=user, team=team, defaults={"role": role}
    )
    if created or membership.role != role:
        before = None if created else {"role": membership.role}
        membership.role = role
        membership.save(update_fields=["role"])
        record(actor, "set-role", membership, team=team, before=before, after={"role": str(role)})
        close_sockets(user)
    return membership


@transaction.atomic
def remove_member(actor: Any, membership: Membership) -> None:
    """Take a member out of a team. The account stays; open invitations that they made are revoked.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of the team (who leaves it needs to be none).
    LastAdmin
        It would have no active admin any more.
    """
    user, team = membership.user, membership.team
    if actor is None or actor.pk != user.pk:
        require(actor, team, ADMINS)
    keep_an_admin(user, team)
    membership = Membership.objects.select_for_update().get(pk=membership.pk)
    if not user.is_superuser:
        revoke_invitations_of(actor, user, team)
    record(actor, "remove", membership, team=team, before={"role": membership.role})
    membership.delete()
    close_sockets(user)


def keep_an_admin(user: User, team: Team) -> None:
    """Raise LastAdmin if `user` is the only active admin of `team`; locks the team, so that two admins who
    remove each other at once cannot both succeed."""
    Team.objects.select_for_update().get(pk=team.pk)
    admins = Membership.objects.filter(team=team, role=Role.ADMIN, user__is_active=True)
    keys = set(admins.values_list("user", flat=True))
    if keys == {user.pk}:
        raise LastAdmin(user, team)
