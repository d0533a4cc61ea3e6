"""What the pages of accounts read."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from axes.helpers import get_cool_off, get_failure_limit
from axes.models import AccessAttempt
from django.contrib.sessions.models import Session
from django.db.models import Count, Exists, IntegerField, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from webapp.accounts.models import AuditEntry, Invitation, LoginSession, Membership, Role, Team, User

RESET_MAIL_EVERY = timedelta(minutes=5)


class TeamRole(NamedTuple):
    """The name of a team, and somebody's role in it."""

    team: str
    role: str


def team_roles(user: Any) -> list[TeamRole]:
    """The teams that `user` is in, by name."""
    rows = Membership.objects.filter(user=user).order_by("team__name").values_list("team__name", "role")
    return [TeamRole(*row) for row in rows]


def people(user: Any) -> QuerySet[User]:
    """Accounts that `user` may look at: members of the teams that they administer; all for a superuser."""
    if user.is_superuser:
        return User.objects.all()
    return User.objects.filter(pk__in=Membership.objects.visible_to(user).values("user"))


def members(user: Any) -> QuerySet[Membership]:
    """The rows of the list of people, with whether the account is locked."""
    return (
        Membership.objects.visible_to(user)
        .select_related("user", "team")
        .annotate(locked=locked("user__username"))
    )


def locked(name: str) -> Exists:
    """Whether too many wrong passwords came from one address for the username in the column `name`."""
    wait = get_cool_off()
    since = timezone.now() - wait if wait else datetime.min.replace(tzinfo=UTC)
    tried = AccessAttempt.objects.filter(username=OuterRef(name), attempt_time__gte=since)
    by_address = tried.values("username", "ip_address").annotate(failures=Sum("failures_since_start"))
    return Exists(by_address.filter(failures__gte=get_failure_limit(None, None)))


def is_locked(user: User) -> bool:
    """Whether `user` is locked out from some address."""
    return User.objects.annotate(locked=locked("username")).values_list("locked", flat=True).get(pk=user.pk)


def teams(user: Any) -> QuerySet[Team]:
    """Teams that `user` is an admin of, with how many members, admins and open invitations they have."""
    members = Membership.objects.filter(team=OuterRef("pk"))
    invited = Invitation.objects.open().filter(team=OuterRef("pk"))
    return Team.objects.administered_by(user).annotate(
        member_count=_counted(members),
        admin_count=_counted(members.filter(role=Role.ADMIN, user__is_active=True)),
        invitation_count=_counted(invited),
    )


def _counted(rows: QuerySet[Any]) -> Coalesce:
    """How many `rows` a team has; each counts by itself: joined, two thousand would be a million."""
    each = rows.order_by().values("team").annotate(counted=Count("pk")).values("counted")
    return Coalesce(Subquery(each, output_field=IntegerField()), 0)


def invitations(user: Any) -> QuerySet[Invitation]:
    """Invitations into the teams that `user` is an admin of."""
    return Invitation.objects.visible_to(user).select_related("team", "invited_by", "accepted_by")


def open_sessions(user: User) -> QuerySet[LoginSession]:
    """The sessions of `user` that have neither ended nor run out."""
    alive = Session.objects.filter(expire_date__gt=timezone.now()).values("session_key")
    return LoginSession.objects.filter(user=user, session_key__in=alive)


def reset_mail_is_recent(user: User) -> bool:
    """Whether a link was sent to `user` a moment ago."""
    since = timezone.now() - RESET_MAIL_EVERY
    return AuditEntry.objects.filter(
        object_type="user", object_id=str(user.pk), verb="reset-mail", at__gt=since
    ).exists()
