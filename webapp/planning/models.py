"""Saved plans: what was asked, and what the engine answered."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

from django.conf import settings
from django.db import models

from webapp.accounts.models import Team


def _asked_once(what: str) -> models.UniqueConstraint:
    """One row for each key that somebody has sent."""
    return models.UniqueConstraint(
        fields=["created_by", "idempotency_key"],
        condition=~models.Q(idempotency_key=""),
        name=f"{what}_asked_once",
    )


class PlanQuerySet(models.QuerySet["Plan"]):
    def visible_to(self, user: Any) -> PlanQuerySet:
        """Plans of the teams that `user` reads."""
        return self.filter(team__in=Team.objects.visible_to(user))

    def for_lists(self) -> PlanQuerySet:
        """With `shown`, the best option without the orders of its schedule; the whole answer stays behind."""
        option = "(%(expressions)s->'options'->(%(expressions)s->>'best')::int) - 'schedule'"
        shown = models.Func(models.F("result"), template=option, output_field=models.JSONField())
        return self.annotate(shown=shown).defer("result", "training").select_related("created_by")


class Plan(models.Model):
    """One question to the planner with its answer, and what a launch of it would train."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="plans")
    name = models.CharField(max_length=80)
    request = models.JSONField()  # the document of `meridian plan`
    result = models.JSONField()  # its answer
    training = models.JSONField(null=True)  # model, data, steps, lr … of a launch; null: planned only
    computed_ms = models.FloatField()
    idempotency_key = models.CharField(max_length=64, blank=True, editable=False)
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
            ),
            _asked_once("plan"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def best(self) -> dict[str, Any] | None:
        """The option that the planner prefers, if any is feasible."""
        index = self.result.get("best")
        return None if index is None else self.result["options"][index]

    def free_name(self) -> str:
        """Its name with the lowest number from 2 that the team has not given yet: "east v2"."""
        taken = set(Plan.objects.filter(team=self.team).values_list("name", flat=True))
        return next(name for n in itertools.count(2) if (name := f"{self.name[:70]} v{n}") not in taken)


class ComputationState(models.TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


OPEN = (ComputationState.QUEUED, ComputationState.RUNNING)


class ComputationKind(models.TextChoices):
    SCHEDULES = "schedules", "Comparison"
    SWEEP = "sweep", "Sweep"
    PLACEMENT = "placement", "Placement"
    REFINE = "refine", "Refinement"
    PLAN = "plan", "Plan"
    RUN = "run", "Schedule of a run"


class ComputationQuerySet(models.QuerySet["Computation"]):
    def visible_to(self, user: Any) -> ComputationQuerySet:
        """Computations of the teams that `user` reads."""
        return self.filter(team__in=Team.objects.visible_to(user))

    def of(self, *kinds: str) -> ComputationQuerySet:
        """Those of `kinds`."""
        return self.filter(kind__in=kinds)

    def lost(self, heard_before: Any, sent_before: Any) -> ComputationQuerySet:
        """Open ones that nobody seems to be at: running and silent, or queued for long."""
        silent = models.Q(state=ComputationState.RUNNING, heard_at__lt=heard_before)
        waiting = models.Q(state=ComputationState.QUEUED, sent_at__lt=sent_before)
        return self.filter(silent | waiting)


class Computation(models.Model):
    """A question that takes the engine longer than a page may take: asked, worked at, answered.

    request : the document that the kind's function reads.  progress : {"done", "of"} and the search's own.
    answer : what it returned, kept while it grows.  claim : who works at it; nobody else's is taken.
    plan : that it refines, that it places, or that it made.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="computations")
    plan = models.ForeignKey(Plan, null=True, on_delete=models.CASCADE, related_name="computations")
    kind = models.CharField(max_length=16, choices=ComputationKind.choices)
    name = models.CharField(max_length=80)
    request = models.JSONField()
    state = models.CharField(max_length=16, choices=ComputationState.choices, default=ComputationState.QUEUED)
    progress = models.JSONField(null=True)
    answer = models.JSONField(null=True)
    error = models.TextField(blank=True)
    claim = models.UUIDField(null=True)
    idempotency_key = models.CharField(max_length=64, blank=True, editable=False)
    cancel_asked = models.BooleanField(default=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    heard_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    objects = ComputationQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=ComputationState.values), name="computation_state_known"
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=ComputationKind.values), name="computation_kind_known"
            ),
            _asked_once("computation"),
        ]
        indexes = [
            models.Index(fields=["team", "-created_at"], name="computation_of_team"),
            models.Index(
                fields=["state", "heard_at"], name="computation_open", condition=models.Q(state__in=OPEN)
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_open(self) -> bool:
        return self.state in OPEN
