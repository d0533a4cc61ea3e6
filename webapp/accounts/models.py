"""Who works here: users, teams, the role of a user in a team, and what was done by whom."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import Q


class Role(models.TextChoices):
    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Admin"
    TENANT = "tenant", "Tenant"


# Roles that see a team's data centres, plans and runs; a tenant sees its own tenancies alone.
READERS = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
OPERATORS = (Role.OPERATOR, Role.ADMIN)


class User(AbstractUser):
    """A person. What they may do hangs on their memberships; a superuser may do everything."""

    class Meta(AbstractUser.Meta):
        pass


class TeamQuerySet(models.QuerySet["Team"]):
    def visible_to(self, user: Any) -> TeamQuerySet:
        """Teams that `user` is a reader of."""
        return self.with_role(user, READERS)

    def with_role(self, user: Any, roles: tuple[Role, ...]) -> TeamQuerySet:
        """Teams in which `user` has one of `roles`; all of them for a superuser."""
        if not user.is_authenticated or not user.is_active:
            return self.none()
        if user.is_superuser:
            return self.all()
        member = Membership.objects.filter(user=user, role__in=roles)
        return self.filter(pk__in=member.values("team"))


class Team(models.Model):
    """Owner of data centres, plans and runs."""

    name = models.CharField(max_length=80, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = TeamQuerySet.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """The role of one user in one team."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)

    class Meta:
        ordering = ["team", "user"]
        constraints = [
            models.UniqueConstraint(fields=["user", "team"], name="membership_unique"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.get_role_display().lower()} of {self.team}"


class AuditEntryQuerySet(models.QuerySet["AuditEntry"]):
    def visible_to(self, user: Any) -> AuditEntryQuerySet:
        """Entries of teams that `user` is an admin of."""
        return self.filter(team__in=Team.objects.with_role(user, (Role.ADMIN,)))


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
        indexes = [models.Index(fields=["team", "-at"]), models.Index(fields=["object_type", "object_id"])]

    def __str__(self) -> str:
        return f"{self.actor or 'Meridian'} {self.verb} {self.object_type} {self.object_label}"
