"""What a team has: data centres, the nodes in them, the WAN links between them."""

from webapp.inventory.models.datacenter import DataCenter, FabricKind
from webapp.inventory.models.limits import FINITE, NAME, NAME_PATTERN
from webapp.inventory.models.link import WanLink, WanLinkQuerySet
from webapp.inventory.models.measurement import LinkMeasurement, LinkSource
from webapp.inventory.models.node import (
    Device,
    JoinToken,
    Node,
    NodeQuerySet,
    NodeState,
    free_ports,
    silence,
    silent_now,
)
from webapp.inventory.models.pool import GpuPool, GpuPoolQuerySet
from webapp.inventory.models.probe import NodeProbe, NodeProbeQuerySet
from webapp.inventory.models.samples import SamplePreview, SamplePreviewQuerySet
from webapp.inventory.models.trial import LinkTrial, LinkTrialQuerySet

Thing = DataCenter | GpuPool | Node | WanLink  # what people create, change and delete

__all__ = [
    "FINITE",
    "NAME",
    "NAME_PATTERN",
    "DataCenter",
    "Device",
    "FabricKind",
    "GpuPool",
    "GpuPoolQuerySet",
    "JoinToken",
    "LinkMeasurement",
    "LinkSource",
    "LinkTrial",
    "LinkTrialQuerySet",
    "Node",
    "NodeProbe",
    "NodeProbeQuerySet",
    "NodeQuerySet",
    "NodeState",
    "SamplePreview",
    "SamplePreviewQuerySet",
    "Thing",
    "WanLink",
    "WanLinkQuerySet",
    "free_ports",
    "silence",
    "silent_now",
]
