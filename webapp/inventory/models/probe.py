"""Whether one node reached another when somebody asked."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models

from webapp.accounts.models import OfTeamQuerySet
from webapp.inventory.models.node import Node
from webapp.inventory.models.question import Question


class NodeProbeQuerySet(OfTeamQuerySet["NodeProbe"]):
    TEAM = "source__dc__team"

    def latest(self) -> NodeProbeQuerySet:  # type: ignore[override]
        """The last of each ordered pair."""
        return self.order_by("source_id", "target_id", "-asked_at", "-id").distinct("source_id", "target_id")


class NodeProbe(Question):
    """One try of node `source` to reach node `target`; `ok` is None until the source has answered."""

    PATIENCE = timedelta(seconds=15)  # for an agent to answer

    probe = models.CharField(max_length=32)  # tries that were asked for together
    source = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="probes")
    target = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="probed")
    asked_at = models.DateTimeField()
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    ok = models.BooleanField(null=True)
    rtt_ms = models.FloatField(null=True)
    offset_ms = models.FloatField(null=True)  # the source's clock minus the target's
    error = models.CharField(max_length=200, blank=True)

    objects = NodeProbeQuerySet.as_manager()

    class Meta:
        ordering = ["-asked_at", "-id"]
        indexes = [models.Index(fields=["source", "target", "-asked_at"])]
        constraints = [
            models.UniqueConstraint(fields=["probe", "source", "target"], name="nodeprobe_pair_unique"),
            models.CheckConstraint(
                condition=~models.Q(source=models.F("target")), name="nodeprobe_two_nodes"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"
