"""What a team has: data centres, the nodes in them, the WAN links between them."""

from webapp.inventory.models.datacenter import DataCenter, DataCenterQuerySet
from webapp.inventory.models.limits import FINITE, NAME, NAME_PATTERN
from webapp.inventory.models.link import WanLink, WanLinkQuerySet
from webapp.inventory.models.node import Device, Node, NodeQuerySet, NodeState, silence
from webapp.inventory.models.pool import GpuPool, GpuPoolQuerySet

__all__ = [
    "FINITE", "NAME", "NAME_PATTERN", "DataCenter", "DataCenterQuerySet", "Device", "GpuPool",
    "GpuPoolQuerySet", "Node", "NodeQuerySet", "NodeState", "WanLink", "WanLinkQuerySet", "silence",
]  # fmt: skip
