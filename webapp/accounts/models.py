"""Who works here: users, teams, the role of a user in a team, and what was done by whom."""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

from django.contrib.auth.models import AbstractUser, UserManager
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models, transaction
from django.db.models import Func, Q, Value
from django.db.models.functions import Cast
from django.utils import timezone

from webapp.common.logs import request_id
from webapp.common.search import Words

M = TypeVar("M", bound=models.Model, covariant=True)


class Role(models.TextChoices):
    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Admin"
    TENANT = "tenant", "Tenant"


# Roles that see a team's data centres, plans and runs; a tenant sees its own tenancies alone.
READERS = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
OPERATORS = (Role.OPERATOR, Role.ADMIN)
ADMINS = (Role.ADMIN,)


class PeopleManager(UserManager["User"]):
    """Makes users; what `manage.py createsuperuser` makes stands in the audit like everything else."""

    use_in_migrations = False

    @transaction.atomic(savepoint=False)
    def create_superuser(self, *args: Any, **kwargs: Any) -> User:
        """A user who may do everything, with their row in the audit."""
        user = super().create_superuser(*args, **kwargs)
        after = {"username": user.username, "is_superuser": True}
        AuditEntry.objects.write(None, "create", user, after=after, message="From the command line.")
        return user


class User(AbstractUser):
    """A person. What they may do hangs on their memberships; a superuser may do everything."""

    time_zone = models.CharField(max_length=40, blank=True)  # IANA name; empty: the browser's

    page_name = "accounts:person-detail"
    objects: ClassVar[PeopleManager] = PeopleManager()

    class Meta(AbstractUser.Meta):
        indexes: ClassVar[list[Any]] = [
            GinIndex(Words("username", "first_name", "last_name", "email"), name="user_words"),
        ]


class TeamQuerySet(models.QuerySet["Team"]):
    def visible_to(self, user: Any) -> TeamQuerySet:
        """Teams that `user` is a reader of."""
        return self.with_role(user, READERS)

    def administered_by(self, user: Any) -> TeamQuerySet:
        """Teams that `user` is an admin of."""
        return self.with_role(user, ADMINS)

    def with_role(self, user: Any, roles: tuple[Role, ...]) -> TeamQuerySet:
        """Teams in which `user` has one of `roles`; all of them for a superuser."""
        if not user.is_authenticated or not user.is_active:
            return self.none()
        if user.is_superuser:
            return self.all()
        # A join, as each query around a subquery would have to plan it; a person is in a team once.
        return self.filter(memberships__user=user, memberships__role__in=roles)


class Team(models.Model):
    """Owner of data centres, plans and runs."""

    name = models.CharField(max_length=80, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    page_name = "accounts:team-edit"
    objects = TeamQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        indexes = [GinIndex(Words("name"), name="team_words")]

    def __str__(self) -> str:
        return self.name


class OfTeamQuerySet(models.QuerySet[M]):
    """Rows that are of a team, by the path of fields TEAM."""

    TEAM = "team"

    def visible_to(self, user: Any) -> Self:
        """Those of the teams that `user` reads."""
        return self.filter(**{f"{self.TEAM}__in": Team.objects.visible_to(user)})


class ArchivableQuerySet(OfTeamQuerySet[Any]):
    """Of rows that a team may put away (webapp.common.archived)."""

    def current(self) -> Self:
        """Those that are not archived."""
        return self.filter(archived_at=None)


class MembershipQuerySet(models.QuerySet["Membership"]):
    def visible_to(self, user: Any) -> MembershipQuerySet:
        """Memberships in the teams that `user` is an admin of."""
        return self.filter(team__in=Team.objects.administered_by(user))


class Membership(models.Model):
    """The role of one user in one team."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)
    joined_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = MembershipQuerySet.as_manager()

    class Meta:
        ordering = ["team", "user"]
        constraints = [
            models.UniqueConstraint(fields=["user", "team"], name="membership_unique"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.get_role_display().lower()} of {self.team}"


class InvitationQuerySet(models.QuerySet["Invitation"]):
    def visible_to(self, user: Any) -> InvitationQuerySet:
        """Invitations into the teams that `user` is an admin of."""
        return self.filter(team__in=Team.objects.administered_by(user))

    def open(self) -> InvitationQuerySet:
        """Those that can still be accepted."""
        return self.filter(accepted_at=None, revoked_at=None, expires_at__gt=timezone.now())


class InvitationState(models.TextChoices):
    """Derived, never stored."""

    OPEN = "open", "Open"
    ACCEPTED = "accepted", "Accepted"
    REVOKED = "revoked", "Revoked"
    EXPIRED = "expired", "Expired"


class Invitation(models.Model):
    """A one-time link into a team. The database keeps a hash of its token; the link is shown once."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField("e-mail")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)
    token_sha256 = models.CharField(max_length=64, unique=True, editable=False)
    invited_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True)
    accepted_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    revoked_at = models.DateTimeField(null=True)

    objects = InvitationQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(condition=Q(role__in=Role.values), name="invitation_role_known"),
            models.CheckConstraint(
                condition=Q(accepted_at__isnull=True) | Q(revoked_at__isnull=True),
                name="invitation_accepted_or_revoked",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.email} into {self.team}"

    @property
    def state(self) -> InvitationState:
        if self.accepted_at:
            return InvitationState.ACCEPTED
        if self.revoked_at:
            return InvitationState.REVOKED
        return InvitationState.OPEN if timezone.now() < self.expires_at else InvitationState.EXPIRED


class LoginSession(models.Model):
    """A session that began with a login: what a person sees of where they are logged in."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="login_sessions")
    session_key = models.CharField(max_length=40, unique=True)
    since = models.DateTimeField(auto_now_add=True)
    address = models.GenericIPAddressField(null=True)
    browser = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-since"]

    def __str__(self) -> str:
        return f"{self.user} from {self.address or 'somewhere'}"


MOST_CANDIDATES = 2000  # rows that the index of the audit may offer and that are then read one by one


class Trigrams(Func):
    """All that is three characters long in one of two texts, in capitals: a function of migration 0001.

    It does what the extension pg_trgm does, which not every PostgreSQL comes with.
    """

    function = "accounts_trigrams"
    output_field = ArrayField(models.TextField())


class AuditEntryQuerySet(models.QuerySet["AuditEntry"]):
    def visible_to(self, user: Any) -> AuditEntryQuerySet:
        """Entries of the teams that `user` is an admin of, of their members' accounts, and `user`'s own."""
        if not user.is_authenticated or not user.is_active:
            return self.none()
        if user.is_superuser:
            return self.all()
        teams = Team.objects.administered_by(user)
        members = Membership.objects.filter(team__in=teams).annotate(key=Cast("user_id", models.CharField()))
        accounts = Q(team=None, object_type="user", object_id__in=members.values("key"))
        return self.filter(Q(team__in=teams) | accounts | Q(actor=user))

    def write(
        self,
        actor: Any,
        verb: str,
        thing: models.Model,
        *,
        team: Team | None = None,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
        message: str = "",
    ) -> AuditEntry:
        """The row of a change; services write it with `record`."""
        return self.create(
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

    def search(self, text: str) -> AuditEntryQuerySet:
        """Entries with `text` in the object's name or the message, or of the request with that id.

        An index tells which rows hold all trigrams of `text`. Where they are many, any order of reading finds
        enough of them soon, and the index would only add its own work.
        """
        matches = Q(object_label__icontains=text) | Q(message__icontains=text)
        if len(text) >= 3:
            rows = self.model._default_manager.alias(trigrams=Trigrams("object_label", "message"))
            superset = rows.filter(trigrams__contains=Trigrams(Value(text), Value(""))).order_by()
            few = list(superset.values_list("pk", flat=True)[: MOST_CANDIDATES + 1])
            if len(few) <= MOST_CANDIDATES:
                matches &= Q(pk__in=few)
        return self.filter(matches | Q(request_id=text))


class AuditEntry(models.Model):
    """One change of state: who did what to which object. Written in the change's transaction."""

    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+"
    )  # null: Meridian itself
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+")
    verb = models.CharField(max_length=40)
    object_type = models.CharField(max_length=40)
    object_id = models.CharField(max_length=40)
    object_label = models.CharField(max_length=200)
    before = models.JSONField(null=True)  # the values that differ; null: it did not exist
    after = models.JSONField(null=True)  # null: it is gone
    request_id = models.CharField(max_length=64, blank=True)
    message = models.CharField(max_length=500, blank=True)

    objects = AuditEntryQuerySet.as_manager()

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["team", "-at"]),
            models.Index(fields=["object_type", "object_id"]),
            models.Index(fields=["actor", "-at"]),
            models.Index(fields=["verb", "-at"]),
            models.Index(fields=["-at", "-id"]),
            models.Index(fields=["request_id"]),
            # And one of trigrams over object_label and message, which migration 0001 makes: see `search`.
        ]

    def __str__(self) -> str:
        return f"{self.actor or 'Meridian'} {self.verb} {self.object_type} {self.object_label}"
