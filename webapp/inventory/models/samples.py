"""The first samples that a run would read, as a node has read them for somebody who is about to launch it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import models

from webapp.inventory.models.node import Node
from webapp.inventory.models.question import Question


class SamplePreviewQuerySet(models.QuerySet["SamplePreview"]):
    def visible_to(self, user: Any) -> SamplePreviewQuerySet:
        """Those that `user` has asked for: what is in the files of a node is nobody else's to read here."""
        return self.filter(asked_by=user.pk) if user.is_authenticated else self.none()


class SamplePreview(Question):
    """One question to `node` for samples; `at` is None until it has answered."""

    PATIENCE = timedelta(seconds=45)  # for a node to read and answer

    preview = models.CharField(max_length=32, unique=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="previews")
    reads = models.CharField(max_length=600)  # the data, in words
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    samples = models.JSONField(default=list)  # [{source, parts: [{document, counts, tokens, text}], cut}]
    error = models.CharField(max_length=2_000, blank=True)

    objects = SamplePreviewQuerySet.as_manager()

    class Meta:
        ordering = ["-asked_at", "-id"]
        indexes = [models.Index(fields=["asked_by", "-asked_at"])]

    def __str__(self) -> str:
        return f"{self.reads} on {self.node}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """`samples` with how many of the tokens shown a loss counts, `counted` of `tokens`."""
        return [_row(sample) for sample in self.samples]


def _row(sample: dict[str, Any]) -> dict[str, Any]:
    parts = sample["parts"]
    counted = sum(part["tokens"] for part in parts if part["counts"])
    return {**sample, "counted": counted, "tokens": sum(part["tokens"] for part in parts)}
