"""Reads of the inventory: what pools a plan or job names, and what the pages show."""

from webapp.inventory.selectors.details import detail_context, tcp_figures
from webapp.inventory.selectors.nodes import clock_offsets_s
from webapp.inventory.selectors.pools import datacenter_name, named_pools, pools, several

__all__ = [
    "clock_offsets_s",
    "datacenter_name",
    "detail_context",
    "named_pools",
    "pools",
    "several",
    "tcp_figures",
]
