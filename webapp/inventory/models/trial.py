"""What was found when somebody had the rate of a link measured."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import models

from webapp.accounts.models import OfTeamQuerySet
from webapp.inventory.models.link import WanLink
from webapp.inventory.models.node import Node
from webapp.inventory.models.question import Question


class LinkTrialQuerySet(OfTeamQuerySet["LinkTrial"]):
    TEAM = "link__a__team"


class LinkTrial(Question):
    """One measurement of `link` from node `source` to node `target`; `at` is None until it was answered."""

    PATIENCE = timedelta(seconds=60)  # for the nodes to measure and answer

    trial = models.CharField(max_length=32, unique=True)
    link = models.ForeignKey(WanLink, on_delete=models.CASCADE, related_name="trials")
    source = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    target = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    emulated = models.BooleanField(default=False)
    rtt_ms = models.FloatField(null=True)
    rates = models.JSONField(default=list)  # [{connections, gbps}], ascending
    error = models.CharField(max_length=300, blank=True)

    objects = LinkTrialQuerySet.as_manager()

    class Meta:
        ordering = ["-asked_at", "-id"]
        indexes = [models.Index(fields=["link", "-asked_at"])]
        constraints = [
            models.CheckConstraint(
                condition=~models.Q(source=models.F("target")), name="linktrial_two_nodes"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"

    @property
    def each(self) -> list[dict[str, Any]]:
        """`rates` with what each connection carried, `gbps_each`."""
        return [rate | {"gbps_each": rate["gbps"] / rate["connections"]} for rate in self.rates]
