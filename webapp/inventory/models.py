"""What a team has: data centres, the nodes in them, the WAN links between them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from webapp.accounts.models import Team

# Node names become broker users, key prefixes and queue names: letters that mean nothing there.
NAME_PATTERN = r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
NAME = RegexValidator(
    rf"\A{NAME_PATTERN}\Z",
    "Lower-case letters, digits and inner hyphens, at most 40 characters, as in us-east-1.",
)
FINITE = MaxValueValidator(1e9)


def silence() -> timedelta:
    """How long after its last heartbeat a node counts as silent."""
    return timedelta(seconds=settings.NODE_SILENT_AFTER_S)


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


class Device(models.TextChoices):
    CPU = "cpu", "CPU"
    EMULATED = "emulated", "Emulated GPU"
    CUDA = "cuda", "CUDA GPU"


class NodeState(models.TextChoices):
    """What the last heartbeat says of a node; derived, never stored."""

    ONLINE = "online", "Online"
    SILENT = "silent", "Silent"
    NEVER = "never", "Never seen"


class NodeQuerySet(models.QuerySet["Node"]):
    def visible_to(self, user: Any) -> NodeQuerySet:
        """Nodes of the data centres that `user` sees."""
        return self.filter(dc__team__in=Team.objects.visible_to(user))

    def online(self) -> NodeQuerySet:
        """Nodes whose last heartbeat is recent."""
        return self.filter(last_seen__gte=timezone.now() - silence())


class Node(models.Model):
    """One machine with GPUs, on which an agent runs."""

    dc = models.ForeignKey(
        DataCenter, on_delete=models.PROTECT, related_name="nodes", verbose_name="data centre"
    )
    name = models.CharField(max_length=40, unique=True, validators=[NAME])
    gpus = models.PositiveIntegerField("GPUs", validators=[MinValueValidator(1), MaxValueValidator(1024)])
    device = models.CharField(max_length=10, choices=Device.choices, default=Device.CUDA)
    host = models.CharField(max_length=253, default="127.0.0.1")  # where other nodes reach it
    created_at = models.DateTimeField(auto_now_add=True)
    # Enrolment: SHA-256 of the node's broker password; empty until enrolled.
    acl_sha256 = models.CharField(max_length=64, blank=True, editable=False)
    enrolled_at = models.DateTimeField(null=True, editable=False)
    # From heartbeats.
    last_seen = models.DateTimeField(null=True, editable=False)
    seen_gpus = models.PositiveIntegerField(null=True, editable=False)
    seen_device = models.CharField(max_length=10, blank=True, editable=False)
    version = models.CharField(max_length=40, blank=True, editable=False)
    seen_ranks = models.JSONField(default=list, editable=False)  # [{run, generation, rank, pid, state}]

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(gpus__gte=1) & Q(gpus__lte=1024), name="node_gpus_range"),
            models.CheckConstraint(condition=Q(device__in=Device.values), name="node_device_known"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> NodeState:
        if self.last_seen is None:
            return NodeState.NEVER
        return NodeState.ONLINE if timezone.now() - self.last_seen <= silence() else NodeState.SILENT


class WanLinkQuerySet(models.QuerySet["WanLink"]):
    def visible_to(self, user: Any) -> WanLinkQuerySet:
        """Links between data centres that `user` sees."""
        return self.filter(a__team__in=Team.objects.visible_to(user))


class WanLink(models.Model):
    """The WAN between two data centres of one team, the same both ways; `a` has the lower id."""

    a = models.ForeignKey(DataCenter, on_delete=models.PROTECT, related_name="+")
    b = models.ForeignKey(DataCenter, on_delete=models.PROTECT, related_name="+")
    latency_ms = models.FloatField(validators=[MinValueValidator(0), MaxValueValidator(10_000)])  # one way
    bandwidth_gbps = models.FloatField(
        validators=[MinValueValidator(0.001), MaxValueValidator(1e5)]
    )  # per node pair
    connections = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(256)]
    )  # TCP connections per node pair; empty: as many as it takes
    egress_price_per_gb = models.DecimalField(
        max_digits=10, decimal_places=4, default=0, validators=[MinValueValidator(0)]
    )

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
