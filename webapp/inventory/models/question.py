"""What a question to the agents of nodes has in common: when it was asked, and when it was answered."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.utils import timezone


class Question(models.Model):
    """A question that is answered in one event; `at` is None until then.

    PATIENCE : for the answer.
    """

    PATIENCE: ClassVar[timedelta]

    asked_at = models.DateTimeField(default=timezone.now)
    at = models.DateTimeField(null=True)  # of the answer

    class Meta:
        abstract = True

    @property
    def is_waiting(self) -> bool:
        return self.at is None and timezone.now() - self.asked_at < self.PATIENCE

    @property
    def is_unanswered(self) -> bool:
        return self.at is None and not self.is_waiting
