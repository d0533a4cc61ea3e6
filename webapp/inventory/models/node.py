"""Nodes: machines with GPUs, on which agents run, and the tokens with which they join."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from engine.versions import series
from webapp.accounts.models import ADMINS, OPERATORS, Membership, OfTeamQuerySet, Team
from webapp.common.search import Words
from webapp.inventory.models.datacenter import DataCenter
from webapp.inventory.models.limits import NAME, known_address
from webapp.inventory.models.pool import GpuPool

FIRST_PORT = 29_500
RANGE = 100  # ports that a new node gets, or more where it has many GPUs
CLOCK_WARN_MS = 5.0
_PORT = [MinValueValidator(1024), MaxValueValidator(65_535)]


def silence() -> timedelta:
    """How long after its last heartbeat a node counts as silent."""
    return timedelta(seconds=settings.NODE_SILENT_AFTER_S)


def silent_now() -> Q:
    """Nodes that were heard, but not lately. A time of the future is of before our clock was set back."""
    now = timezone.now()
    return Q(last_seen__lt=now - silence()) | Q(last_seen__gt=now + silence())


class Device(models.TextChoices):
    CPU = "cpu", "CPU"
    EMULATED = "emulated", "Emulated GPU"
    CUDA = "cuda", "CUDA GPU"


class NodeState(models.TextChoices):
    """What the last heartbeat says of a node; derived, never stored."""

    ONLINE = "online", "Online"
    SILENT = "silent", "Silent"
    NEVER = "never", "Never seen"


class NodeQuerySet(OfTeamQuerySet["Node"]):
    TEAM = "dc__team"

    def online(self) -> NodeQuerySet:
        """Nodes whose last heartbeat is recent. One of the future is of before our clock was set back."""
        now = timezone.now()
        return self.filter(last_seen__gte=now - silence(), last_seen__lte=now + silence())

    def in_state(self, state: str) -> NodeQuerySet:
        """Nodes of which `Node.state` is `state`."""
        if state == NodeState.NEVER:
            return self.filter(last_seen=None)
        return self.filter(silent_now()) if state == NodeState.SILENT else self.online()


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
    # Where other nodes reach it: its ranks and rendezvous stores listen there, on these ports.
    host = models.CharField(max_length=253, default="127.0.0.1", validators=[known_address])
    port_from = models.PositiveIntegerField("first port", default=FIRST_PORT, validators=_PORT)
    port_to = models.PositiveIntegerField("last port", default=FIRST_PORT + RANGE - 1, validators=_PORT)
    draining_since = models.DateTimeField(null=True, editable=False)  # it is given no more work
    created_at = models.DateTimeField(auto_now_add=True)
    # Enrolment: SHA-256 of the node's broker password; empty until enrolled.
    acl_sha256 = models.CharField(max_length=64, blank=True, editable=False)
    enrolled_at = models.DateTimeField(null=True, editable=False)
    # Since when the broker takes no reports of it, because too much of it waits there.
    refused_since = models.DateTimeField(null=True, editable=False)
    # From heartbeats.
    last_seen = models.DateTimeField(null=True, editable=False)
    seen_gpus = models.PositiveIntegerField(null=True, editable=False)
    seen_device = models.CharField(max_length=10, blank=True, editable=False)
    version = models.CharField(max_length=40, blank=True, editable=False)
    seen_ranks = models.JSONField(default=list, editable=False)  # [{run, generation, rank, pid, state}]
    seen_hardware = models.JSONField(default=dict, editable=False)  # workers/hardware.py
    # The node's clock minus the broker's, and the round trip that bounds its error.
    clock_offset_ms = models.FloatField(null=True, editable=False)
    clock_rtt_ms = models.FloatField(null=True, editable=False)

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        indexes = [GinIndex(Words("name", "host"), name="node_words")]
        constraints = [
            models.CheckConstraint(condition=Q(gpus__gte=1) & Q(gpus__lte=1024), name="node_gpus_range"),
            models.CheckConstraint(condition=Q(device__in=Device.values), name="node_device_known"),
            models.CheckConstraint(
                condition=Q(port_from__gte=1024, port_to__lte=65_535, port_from__lte=F("port_to")),
                name="node_ports_range",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> NodeState:
        if self.last_seen is None:
            return NodeState.NEVER
        recent = abs(timezone.now() - self.last_seen) <= silence()
        return NodeState.ONLINE if recent else NodeState.SILENT

    @property
    def is_enrolled(self) -> bool:
        return bool(self.acl_sha256)

    @property
    def is_draining(self) -> bool:
        return self.draining_since is not None or self.dc.draining_since is not None

    @property
    def is_skewed(self) -> bool:
        """Whether its agent is of a version that does not go with ours."""
        return bool(self.version) and series(self.version) != series()

    @property
    def is_placeable(self) -> bool:
        """Whether it may be given work: enrolled, online, of our version, not draining, nor its site."""
        may = self.is_enrolled and not self.is_draining and not self.is_skewed
        return may and self.state == NodeState.ONLINE

    @property
    def probe_port(self) -> int:
        """Where it listens while it is probed: the last port of its range."""
        return self.port_to

    @property
    def rendezvous_ports(self) -> range:
        """Ports of rendezvous stores: the upper half of the range but the last."""
        return range(self.port_to - (self.port_to - self.port_from) // 2, self.port_to)

    @property
    def rank_ports(self) -> tuple[int, int]:
        """First and last port on which its ranks may listen: the lower half of the range."""
        return self.port_from, max(self.port_from, self.rendezvous_ports.start - 1)

    @property
    def clock_error_ms(self) -> float | None:
        """How wrong `clock_offset_ms` may be: half the round trip."""
        return None if self.clock_rtt_ms is None else self.clock_rtt_ms / 2

    @property
    def clock_is_off(self) -> bool:
        """Whether its clock is off by more than is tolerable, and by more than the error of measuring."""
        if self.clock_offset_ms is None:
            return False
        return abs(self.clock_offset_ms) > max(CLOCK_WARN_MS, (self.clock_rtt_ms or 0.0) / 2)

    def needs_other_ports(self) -> bool:
        """Whether its range is too small for it, or another node on its host has a part of it."""
        too_few = self.port_to - self.port_from + 1 < ports_needed(self.gpus)
        return too_few or sharing_ports(self.host, self.port_from, self.port_to).exclude(pk=self.pk).exists()

    def clean(self) -> None:
        """Refuse a range that is too small, or that another node on the same host has a part of."""
        super().clean()
        if not self.port_from or not self.port_to or not self.gpus:
            return
        needed = ports_needed(self.gpus)
        least = self.port_from + needed - 1
        if self.port_to < least:
            raise ValidationError(
                {"port_to": f"{self.gpus} GPUs need {needed} ports: the last port must be at least {least}."}
            )
        other = sharing_ports(self.host, self.port_from, self.port_to).exclude(pk=self.pk).first()
        if other:
            raise ValidationError(
                {"port_from": f"{other} on the same host already uses {other.port_from} to {other.port_to}."}
            )


def ports_needed(gpus: int) -> int:
    """One listening port and one rendezvous store a GPU, and one to be probed on."""
    return 2 * gpus + 1


def sharing_ports(host: str, first: int, last: int) -> NodeQuerySet:
    """Nodes on `host` with ports of first..last."""
    return Node.objects.filter(host=host, port_from__lte=last, port_to__gte=first)


def free_ports(host: str, gpus: int, *, but: int | None = None) -> tuple[int, int]:
    """A range on `host` that only node `but` may have: from 29500 up, below the kernel's own ports.

    Raises
    ------
    ValidationError
        There is none.
    """
    size = max(RANGE, -(-ports_needed(gpus) // RANGE) * RANGE)
    starts = [*range(FIRST_PORT, 32_768 - size, RANGE), *range(10_000, FIRST_PORT - size + 1, RANGE)]
    others = Node.objects.filter(host=host)
    if but is not None:
        others = others.exclude(pk=but)
    taken = list(others.values_list("port_from", "port_to"))
    for first in starts:
        if all(last < first or begin > first + size - 1 for begin, last in taken):
            return first, first + size - 1
    raise ValidationError({"port_from": f"Host {host} has no {size} free ports in a row."})


class JoinTokenQuerySet(models.QuerySet["JoinToken"]):
    def visible_to(self, user: Any) -> JoinTokenQuerySet:
        """Tokens of the nodes that `user` operates."""
        return self.filter(node__dc__team__in=Team.objects.with_role(user, OPERATORS))

    def unused(self) -> JoinTokenQuerySet:
        """Tokens with which nobody has joined; they may have expired."""
        return self.filter(used_at=None)

    def open(self) -> JoinTokenQuerySet:
        """Tokens with which a machine can join now.

        A token is worth what its maker may do now: who was demoted, removed or deactivated, or made a token
        for a node that an admin has given credentials since, no longer lets a machine in.
        """
        own = Membership.objects.filter(user=OuterRef("created_by"), team=OuterRef("node__dc__team"))
        joins = Q(node__acl_sha256="") & Exists(own.filter(role__in=OPERATORS))
        allowed = Q(created_by__is_superuser=True) | joins | Exists(own.filter(role__in=ADMINS))
        allowed_makers = Q(created_by=None) | (Q(created_by__is_active=True) & allowed)
        return self.unused().filter(allowed_makers, expires_at__gt=timezone.now())


class JoinToken(models.Model):
    """The right to join as a node, once, until it expires. Of the token itself only a hash is kept."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="join_tokens")
    token_sha256 = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    used_from = models.GenericIPAddressField(null=True)

    objects = JoinTokenQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"token of {self.node}"

    @property
    def is_expired(self) -> bool:
        return timezone.now() > self.expires_at
