"""That the parts of the control plane live."""

from __future__ import annotations

from django.db import models


class Beat(models.Model):
    """That a part of the control plane lives: `at` moves while it works, since `since`."""

    name = models.CharField(max_length=40, unique=True)
    at = models.DateTimeField()
    since = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
