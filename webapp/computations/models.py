"""Long work that people ask for, and that the parts of the control plane live."""

from __future__ import annotations

import uuid
from datetime import timedelta

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import models

from webapp.accounts.models import ArchivableQuerySet, Team
from webapp.common.ages import older
from webapp.common.archived import Archivable
from webapp.common.asked_once import asked_once
from webapp.common.search import Words


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
    PAPERS = "papers", "Papers"
    TRACE = "trace", "Trace"
    WHAT_IF = "what-if", "What-if of a trace"
    REPLAY = "replay", "Replay of requests"
    CROSS_DC = "cross-dc", "Data or pipeline parallelism"


class ComputationQuerySet(ArchivableQuerySet):
    def of(self, *kinds: str) -> ComputationQuerySet:
        """Those of `kinds`."""
        return self.filter(kind__in=kinds)

    def lost(self, *, silent: timedelta, unheard: timedelta) -> ComputationQuerySet:
        """Open ones that nobody seems to be at: running and silent, or queued, for so long."""
        running = models.Q(state=ComputationState.RUNNING) & older("heard_at", silent)
        waiting = models.Q(state=ComputationState.QUEUED) & older("sent_at", unheard)
        return self.filter(running | waiting)


class Computation(Archivable):
    """A question that takes the engine longer than a page may take: asked, worked at, answered.

    request : the document that the kind's function reads.  progress : {"done", "of"} and the search's own.
    answer : what it returned, kept while it grows.  claim : who works at it; nobody else's is taken.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="computations")
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
            asked_once("computation"),
        ]
        indexes = [
            GinIndex(Words("name"), name="computation_words"),
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


class Beat(models.Model):
    """That a part of the control plane lives: `at` moves while it works, since `since`."""

    name = models.CharField(max_length=40, unique=True)
    at = models.DateTimeField()
    since = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class SiteIdentity(models.Model):
    """Which site this database is of: one row. Its broker holds the same, and no other site may use it."""

    identity = models.UUIDField(default=uuid.uuid4, editable=False)
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "site identities"

    def __str__(self) -> str:
        return str(self.identity)
