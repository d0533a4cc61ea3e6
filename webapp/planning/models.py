"""Saved plans: what was asked, and what the engine answered."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

from webapp.accounts.models import Team


class PlanQuerySet(models.QuerySet["Plan"]):
    def visible_to(self, user: Any) -> PlanQuerySet:
        """Plans of the teams that `user` reads."""
        return self.filter(team__in=Team.objects.visible_to(user))


class Plan(models.Model):
    """One question to the planner with its answer, and what a launch of it would train."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="plans")
    name = models.CharField(max_length=80)
    request = models.JSONField()  # the document of `meridian plan`
    result = models.JSONField()  # its answer
    training = models.JSONField(null=True)  # model, data, steps, lr … of a launch; null: planned only
    computed_ms = models.FloatField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = PlanQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "name"],
                name="plan_name_unique",
                violation_error_message="The team has a plan of this name already.",
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def best(self) -> dict[str, Any] | None:
        """The option that the planner prefers, if any is feasible."""
        index = self.result.get("best")
        return None if index is None else self.result["options"][index]
