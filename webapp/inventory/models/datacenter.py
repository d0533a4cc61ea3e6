"""Data centres: sites with GPUs."""

from __future__ import annotations

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Coalesce

from webapp.accounts.models import Team
from webapp.inventory.models.limits import FINITE, NAME


class DataCenterQuerySet(models.QuerySet["DataCenter"]):
    def visible_to(self, user: Any) -> DataCenterQuerySet:
        """Data centres of the teams that `user` reads."""
        return self.filter(team__in=Team.objects.visible_to(user))

    def with_counts(self) -> DataCenterQuerySet:
        """Adds `node_count` and `gpu_count`."""
        return self.annotate(
            node_count=models.Count("nodes"),
            gpu_count=Coalesce(models.Sum("nodes__gpus"), 0),
        )


class DataCenter(models.Model):
    """One site with GPUs of one type."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="datacenters")
    name = models.CharField(max_length=40, validators=[NAME])
    place = models.CharField(max_length=120, blank=True)
    gpu_type = models.CharField(max_length=40)
    price_per_gpu_hour = models.DecimalField(
        max_digits=10, decimal_places=4, default=0, validators=[MinValueValidator(0)]
    )
    intra_gbps = models.FloatField(default=100, validators=[MinValueValidator(0.001), FINITE])
    latitude = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(-90), MaxValueValidator(90)]
    )
    longitude = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(-180), MaxValueValidator(180)]
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = DataCenterQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        verbose_name = "data centre"
        constraints = [
            models.UniqueConstraint(
                fields=["team", "name"],
                name="datacenter_name_unique",
                violation_error_message="The team has a data centre of this name already.",
            ),
            models.CheckConstraint(
                condition=Q(price_per_gpu_hour__gte=0), name="datacenter_price_not_negative"
            ),
            models.CheckConstraint(condition=Q(intra_gbps__gt=0), name="datacenter_intra_positive"),
            models.CheckConstraint(
                condition=Q(latitude__isnull=True) | Q(latitude__range=(-90, 90)),
                name="datacenter_latitude_range",
            ),
            models.CheckConstraint(
                condition=Q(longitude__isnull=True) | Q(longitude__range=(-180, 180)),
                name="datacenter_longitude_range",
            ),
        ]

    def __str__(self) -> str:
        return self.name
