"""Who may do what. A thing that a user may not see does not exist for them (404); one that they see
but may not change is refused (403)."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.shortcuts import get_object_or_404

from webapp.accounts.models import OPERATORS, Membership, Role, Team, User


def may(user: Any, team: Team | None, roles: tuple[Role, ...] = OPERATORS) -> bool:
    """Whether `user` has one of `roles` in `team`; Meridian itself (None) and superusers may everything."""
    if user is None or user.is_superuser:
        return True
    if team is None or not user.is_active:
        return False
    return Membership.objects.filter(user=user, team=team, role__in=roles).exists()


def require(user: Any, team: Team | None, roles: tuple[Role, ...] = OPERATORS) -> None:
    """Raise PermissionDenied unless `user` has one of `roles` in `team`."""
    if not may(user, team, roles):
        allowed = " or ".join(role.label.lower() for role in roles)
        raise PermissionDenied(f"Only an {allowed} of team {team} may do this.")


def may_somewhere(user: Any, roles: tuple[Role, ...] = OPERATORS) -> bool:
    """Whether `user` has one of `roles` in any team."""
    return Team.objects.with_role(user, roles).exists()


def require_somewhere(user: Any, roles: tuple[Role, ...] = OPERATORS) -> None:
    """Raise PermissionDenied unless `user` has one of `roles` in any team: for forms that choose the team."""
    if not may_somewhere(user, roles):
        allowed = " or ".join(role.label.lower() for role in roles)
        raise PermissionDenied(f"Only an {allowed} of a team may do this.")


def may_manage(actor: Any, user: User) -> bool:
    """Whether `actor` may act on the whole account of `user`: superusers, and admins of every team it is in.

    An admin of one of its teams alone could else take over an admin of another.
    """
    if actor is None or actor.is_superuser:
        return True
    if user.is_superuser or actor.pk == user.pk:
        return False
    teams = set(Membership.objects.filter(user=user).values_list("team", flat=True))
    return bool(teams) and teams <= set(Team.objects.administered_by(actor).values_list("pk", flat=True))


def require_manager(actor: Any, user: User) -> None:
    """Raise PermissionDenied unless `actor` may act on the whole account of `user`."""
    if not may_manage(actor, user):
        raise PermissionDenied(f"Only an admin of every team of {user} may do this.")


def visible_or_404(queryset: Any, user: Any, **lookup: Any) -> Any:
    """The object of `queryset` that `user` may see, else Http404."""
    return get_object_or_404(queryset.visible_to(user), **lookup)
