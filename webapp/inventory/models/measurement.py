"""The history of a link: what was declared and measured of it, when and by whom."""

from __future__ import annotations

import math

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from webapp.accounts.models import OfTeamQuerySet
from webapp.inventory.models.link import BANDWIDTH, LATENCY, WanLink


class LinkSource(models.TextChoices):
    """Where figures of a link are from."""

    DECLARED = "declared", "Declared"
    PROBE = "probe", "Probe"
    RUN = "run", "Run"


class LinkMeasurementQuerySet(OfTeamQuerySet["LinkMeasurement"]):
    TEAM = "link__a__team"


class LinkMeasurement(models.Model):
    """What was found, or said, of a link at one time; what was not measured is empty."""

    link = models.ForeignKey(WanLink, on_delete=models.CASCADE, related_name="measurements")
    at = models.DateTimeField(default=timezone.now)
    latency_ms = models.FloatField(null=True, blank=True, validators=LATENCY)  # one way
    bandwidth_gbps = models.FloatField(null=True, blank=True, validators=BANDWIDTH)  # one node pair
    connections = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(256)]
    )  # over which the bandwidth was measured
    source = models.CharField(max_length=10, choices=LinkSource.choices)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )  # null: Meridian itself

    objects = LinkMeasurementQuerySet.as_manager()

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["link", "-at"])]
        constraints = [
            models.CheckConstraint(
                condition=Q(source__in=LinkSource.values), name="measurement_source_known"
            ),
            models.CheckConstraint(
                condition=Q(latency_ms__isnull=False) | Q(bandwidth_gbps__isnull=False),
                name="measurement_says_something",
                violation_error_message="A measurement has a latency, a bandwidth, or both.",
            ),
            models.CheckConstraint(
                condition=Q(latency_ms__isnull=True) | Q(latency_ms__gte=0),
                name="measurement_latency_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(bandwidth_gbps__isnull=True) | Q(bandwidth_gbps__gt=0),
                name="measurement_bandwidth_positive",
            ),
        ]

    def clean(self) -> None:
        """Refuse what is no number: it is neither below nor above any limit."""
        for name in ("latency_ms", "bandwidth_gbps"):
            if not math.isfinite(getattr(self, name) or 0):
                raise ValidationError({name: "Must be a finite number."})

    def __str__(self) -> str:
        parts = [
            *([f"{self.latency_ms:g} ms"] if self.latency_ms is not None else []),
            *([f"{self.bandwidth_gbps:g} Gbit/s"] if self.bandwidth_gbps is not None else []),
        ]
        return f"{self.link}: {', '.join(parts)}"
