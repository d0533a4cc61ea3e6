"""Data centres: sites with GPUs."""

from __future__ import annotations

from django.contrib.postgres.indexes import GinIndex
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from webapp.accounts.models import OfTeamQuerySet, Team
from webapp.common.search import Words
from webapp.inventory.models.limits import FINITE, NAME, known_country, known_time_zone


class FabricKind(models.TextChoices):
    """Networks inside a data centre, as the engine names them (engine.cluster.fabric)."""

    ANY_TO_ANY = "any-to-any", "Any-to-any"
    RAIL_OPTIMISED = "rail-optimised", "Rail-optimised"
    RAIL_ONLY = "rail-only", "Rail-only"


class DataCenter(models.Model):
    """One site; its GPUs stand in pools of one type each."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="datacenters")
    name = models.CharField(max_length=40, validators=[NAME])
    place = models.CharField(max_length=120, blank=True)
    country = models.CharField(max_length=2, blank=True, validators=[known_country])  # ISO 3166-1 alpha-2
    time_zone = models.CharField(max_length=40, blank=True, validators=[known_time_zone])  # IANA
    intra_gbps = models.FloatField(default=100, validators=[MinValueValidator(0.001), FINITE])
    fabric = models.CharField(max_length=20, choices=FabricKind.choices, default=FabricKind.ANY_TO_ANY)
    hb_domain = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    latitude = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(-90), MaxValueValidator(90)]
    )
    longitude = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(-180), MaxValueValidator(180)]
    )
    draining_since = models.DateTimeField(null=True, editable=False)  # its nodes are given no more work
    created_at = models.DateTimeField(auto_now_add=True)

    objects = OfTeamQuerySet["DataCenter"].as_manager()

    class Meta:
        ordering = ["name"]
        verbose_name = "data centre"
        indexes = [GinIndex(Words("name", "place"), name="datacenter_words")]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "name"],
                name="datacenter_name_unique",
                violation_error_message="The team has a data centre of this name already.",
            ),
            models.CheckConstraint(condition=Q(intra_gbps__gt=0), name="datacenter_intra_positive"),
            models.CheckConstraint(
                condition=Q(fabric=FabricKind.ANY_TO_ANY, hb_domain__isnull=True)
                | Q(
                    fabric__in=[FabricKind.RAIL_OPTIMISED, FabricKind.RAIL_ONLY],
                    hb_domain__isnull=False,
                    hb_domain__gte=1,
                ),
                name="datacenter_rails_have_domains",
                violation_error_message="Rails need GPUs per HB domain; without rails leave it empty.",
            ),
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
