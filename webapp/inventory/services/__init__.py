"""Every change of the inventory: permission, change and audit row in one transaction."""

from webapp.inventory.services.blocked import blocked_by
from webapp.inventory.services.broker import node_broker_url, sync_acl
from webapp.inventory.services.nodes import enrol_node, record_heartbeat, revoke_node
from webapp.inventory.services.things import Blocked, create_datacenter, delete, save, team_of

__all__ = [
    "Blocked", "blocked_by", "create_datacenter", "delete", "enrol_node", "node_broker_url",
    "record_heartbeat", "revoke_node", "save", "sync_acl", "team_of",
]  # fmt: skip
