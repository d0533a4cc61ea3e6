"""Saved plans: what was asked, and what the engine answered."""

from __future__ import annotations

import itertools
from typing import Any

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import models

from webapp.accounts.models import ArchivableQuerySet, Team
from webapp.common.archived import Archivable
from webapp.common.asked_once import asked_once
from webapp.common.described import Described
from webapp.common.search import Words
from webapp.computations.models import Computation, ComputationKind


class PlanQuerySet(ArchivableQuerySet):
    def for_lists(self) -> PlanQuerySet:
        """With `shown`, the best option without the orders of its schedule; the whole answer stays behind."""
        option = "(%(expressions)s->'options'->(%(expressions)s->>'best')::int) - 'schedule'"
        shown = models.Func(models.F("result"), template=option, output_field=models.JSONField())
        return self.annotate(shown=shown).defer("result", "training").select_related("created_by")


class Plan(Archivable, Described):
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
        indexes = [GinIndex(Words("name", "labels", "note"), name="plan_words")]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "name"],
                name="plan_name_unique",
                violation_error_message="The team has a plan of this name already; it may be archived.",
            ),
            asked_once("plan"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def best(self) -> dict[str, Any] | None:
        """The option that the planner prefers, if any is feasible."""
        index = self.result.get("best")
        return None if index is None else self.result["options"][index]

    def latest(self, kind: ComputationKind, document: dict[str, Any]) -> Computation | None:
        """What was last asked for of a document: the plan's own, or a what-if's; one that was stopped too."""
        of_plan = Computation.objects.of(kind).filter(of_plan__plan=self)
        return of_plan.filter(request__document=document).first()

    def free_name(self) -> str:
        """Its name with the lowest number from 2 that the team has not given yet: "east v2"."""
        taken = set(Plan.objects.filter(team=self.team).values_list("name", flat=True))
        return next(name for n in itertools.count(2) if (name := f"{self.name[:70]} v{n}") not in taken)


class PlanComputation(models.Model):
    """That a computation refines a plan, places one of its options, or made it."""

    plan = models.ForeignKey(Plan, on_delete=models.CASCADE, related_name="work")
    computation = models.OneToOneField(Computation, on_delete=models.CASCADE, related_name="of_plan")

    def __str__(self) -> str:
        return f"{self.computation} of {self.plan}"
