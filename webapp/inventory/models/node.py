"""Nodes: machines with GPUs, on which agents run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from webapp.accounts.models import Team
from webapp.inventory.models.datacenter import DataCenter
from webapp.inventory.models.limits import NAME
from webapp.inventory.models.pool import GpuPool


def silence() -> timedelta:
    """How long after its last heartbeat a node counts as silent."""
    return timedelta(seconds=settings.NODE_SILENT_AFTER_S)


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
    # Of the same data centre; a constraint of the database says so too.
    pool = models.ForeignKey(GpuPool, on_delete=models.PROTECT, related_name="nodes", verbose_name="GPU pool")
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
