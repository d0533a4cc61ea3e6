"""WAN links between data centres."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from webapp.accounts.models import OfTeamQuerySet
from webapp.inventory.models.datacenter import DataCenter

LATENCY = [MinValueValidator(0), MaxValueValidator(10_000)]  # ms
BANDWIDTH = [MinValueValidator(0.001), MaxValueValidator(1e5)]  # Gbit/s


class WanLinkQuerySet(OfTeamQuerySet["WanLink"]):
    TEAM = "a__team"


class WanLink(models.Model):
    """The WAN between two data centres of one team, the same both ways; `a` has the lower id."""

    a = models.ForeignKey(DataCenter, on_delete=models.PROTECT, related_name="+")
    b = models.ForeignKey(DataCenter, on_delete=models.PROTECT, related_name="+")
    latency_ms = models.FloatField(validators=LATENCY)  # one way
    bandwidth_gbps = models.FloatField(validators=BANDWIDTH)  # per node pair
    connections = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(256)]
    )  # TCP connections per node pair; empty: as many as it takes
    egress_price_per_gb = models.DecimalField(
        max_digits=10, decimal_places=4, default=0, validators=[MinValueValidator(0)]
    )

    # Where the values in use are from; empty: declared before anybody kept account.
    latency_from = models.ForeignKey(
        "LinkMeasurement", null=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    bandwidth_from = models.ForeignKey(
        "LinkMeasurement", null=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )

    page_name = "inventory:link-detail"
    objects = WanLinkQuerySet.as_manager()

    class Meta:
        ordering = ["a__name", "b__name"]
        verbose_name = "WAN link"
        constraints = [
            models.UniqueConstraint(fields=["a", "b"], name="wanlink_pair_unique"),
            models.CheckConstraint(condition=Q(a__lt=F("b")), name="wanlink_pair_ordered"),
            models.CheckConstraint(condition=Q(latency_ms__gte=0), name="wanlink_latency_not_negative"),
            models.CheckConstraint(condition=Q(bandwidth_gbps__gt=0), name="wanlink_bandwidth_positive"),
            models.CheckConstraint(
                condition=Q(egress_price_per_gb__gte=0), name="wanlink_egress_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.a} – {self.b}"
