"""Every change of the inventory: permission, change and audit row in one transaction."""

from webapp.inventory.services.blocked import blocked_by
from webapp.inventory.services.bounds import bound_reports, cut_crowds
from webapp.inventory.services.broker import NodeUsers, node_broker_url, sync_acl
from webapp.inventory.services.drain import DrainRuns, drain, resume
from webapp.inventory.services.joining import JoinRefused, join_node, offer_join, revoke_join
from webapp.inventory.services.links import record_measurement, use_measurement
from webapp.inventory.services.nodes import enrol_node, record_heartbeat, revoke_node
from webapp.inventory.services.probes import probe_nodes, record_probe
from webapp.inventory.services.rates import measure_link, record_rates
from webapp.inventory.services.samples import preview_samples, record_samples
from webapp.inventory.services.things import Blocked, create_datacenter, delete, save, team_of

__all__ = [
    "Blocked",
    "DrainRuns",
    "JoinRefused",
    "NodeUsers",
    "blocked_by",
    "bound_reports",
    "create_datacenter",
    "cut_crowds",
    "delete",
    "drain",
    "enrol_node",
    "join_node",
    "measure_link",
    "node_broker_url",
    "offer_join",
    "preview_samples",
    "probe_nodes",
    "record_heartbeat",
    "record_measurement",
    "record_probe",
    "record_rates",
    "record_samples",
    "resume",
    "revoke_join",
    "revoke_node",
    "save",
    "sync_acl",
    "team_of",
    "use_measurement",
]
