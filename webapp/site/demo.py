"""The demo: three data centres with four emulated GPUs each, and a job that really trains across them.

Every step finds what an earlier start made. A run whose ranks outlived it goes on; others are over.
"""

import socket
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

from webapp.accounts.models import Role, Team, User
from webapp.accounts.services import ensure_team, ensure_user, set_role
from webapp.computations import liveness
from webapp.inventory import services as inventory
from webapp.inventory.models import DataCenter, Device, GpuPool, Node, WanLink, free_ports
from webapp.jobs.models import Job, Run
from webapp.jobs.services import forget_stopped_work, launch_plan, launch_run
from webapp.planning import compose
from webapp.planning.document import train_document
from webapp.planning.models import Plan
from webapp.planning.services import create_plan
from webapp.prefill import demo as selling
from webapp.servers.places import write_private

TEAM = "Research"
PASSWORD = "meridian-demo"
PLAN = "demo-three-dc"
# name, place, IANA time zone, latitude, longitude, $/GPU h
DATACENTERS = (
    ("us-east", "Ashburn, Virginia", "America/New_York", 39.04, -77.49, "2.20"),
    ("us-central", "Council Bluffs, Iowa", "America/Chicago", 41.26, -95.86, "2.05"),
    ("us-west", "The Dalles, Oregon", "America/Los_Angeles", 45.59, -121.18, "2.10"),
)
GPU_TYPE = "a100-80g"
# a, b, one-way latency in ms
LINKS = (("us-east", "us-central", 10), ("us-central", "us-west", 15), ("us-east", "us-west", 25))
BANDWIDTH_GBPS = 1.0
# Fig. 6 of the Atlas paper in units of 20 ms: F = R = 1, B = 2; 5 MB over 1 Gbit/s take two of them.
TIMES = {"forward_ms": 20.0, "backward_ms": 40.0, "recompute_ms": 20.0, "activation_bytes": 5_000_000}
SHAPE = {"partitions": 6, "microbatches": 4, "policy": "atlas", "order": "gpus", "objective": "throughput"}
TRAINING = {
    "layers": 6,
    "hidden": 64,
    "heads": 4,
    "seq": 64,
    "micro_batch": 2,
    "steps": 20_000,
    "lr": 3e-3,
    "seed": 0,
}


def seed(var: Path, *, sells: bool) -> Run:
    """Make the demo as far as it is not there, and see that its job runs; returns the run.

    sells : the run serves the demo's model, where that is there.
    """
    team = ensure_team(TEAM)
    admin = ensure_user("admin", PASSWORD)
    set_role(admin, team, Role.ADMIN)
    set_role(ensure_user("operator", PASSWORD), team, Role.OPERATOR)
    tenant = ensure_user("tenant", PASSWORD)
    set_role(tenant, team, Role.TENANT)
    dcs = {row[0]: _datacenter(team, *row) for row in DATACENTERS}
    for a, b, latency_ms in LINKS:
        _link(dcs[a], dcs[b], latency_ms)
    nodes = [_node(dc) for dc in dcs.values()]
    (var / "demo").touch()
    if liveness.listening_since() is not None:  # the site runs: leave its run and its nodes alone
        running = Run.objects.open().filter(job__team=team).first()
        if running:
            return running
    for node in nodes:
        write_node_environment(var, inventory.enrol_node(None, node))
    open_runs = Run.objects.open().filter(job__team=team)
    if at_work := next((run for run in open_runs if _trains_on(var, run)), None):
        return at_work
    forget_stopped_work("Meridian ended without being shut down while this ran, and its ranks with it.")
    section = selling.section(var) if sells else None
    run = _launch(team, list(dcs.values()), admin, section)
    if section:
        selling.sell(var, team, tenant, admin, list(dcs.values()))
    return run


def _trains_on(var: Path, run: Run) -> bool:
    """Whether ranks of `run` outlived the site: the shim before them answers (docs/nodes.md)."""
    for address in var.glob(f"agents/*/ranks/{run.pk}-{run.generation}/shim"):
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.connect(address.read_text(encoding="utf-8"))
            return True
    return False


def write_node_environment(var: Path, environment: dict[str, str]) -> Path:
    """Keep an agent's environment in var/nodes/<name>.env, readable by its owner alone."""
    folder = var / "nodes"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{environment['MERIDIAN_NODE']}.env"
    write_private(path, "".join(f"{name}={value}\n" for name, value in environment.items()))
    return path


def _datacenter(
    team: Team, name: str, place: str, time_zone: str, latitude: float, longitude: float, price: str
) -> DataCenter:
    dc = DataCenter.objects.filter(team=team, name=name).first()
    if dc is None:
        dc = DataCenter(
            team=team,
            name=name,
            place=place,
            country="US",
            time_zone=time_zone,
            latitude=latitude,
            longitude=longitude,
        )
        inventory.create_datacenter(None, dc, GpuPool(gpu_type=GPU_TYPE, price_per_gpu_hour=Decimal(price)))
    return dc


def _link(a: DataCenter, b: DataCenter, latency_ms: float) -> WanLink:
    a, b = sorted((a, b), key=lambda dc: dc.pk)
    link = WanLink.objects.filter(a=a, b=b).first()
    return link or _saved(
        WanLink(a=a, b=b, latency_ms=latency_ms, bandwidth_gbps=BANDWIDTH_GBPS, egress_price_per_gb="0.02")
    )


def _node(dc: DataCenter) -> Node:
    name = f"{dc.name}-1"
    existing = Node.objects.filter(name=name).select_related("dc__team").first()
    if existing:
        return existing
    node = Node(dc=dc, pool=dc.pools.get(), name=name, gpus=4, device=Device.EMULATED)
    node.port_from, node.port_to = free_ports(node.host, node.gpus)
    return _saved(node)


def _saved(thing: Any) -> Any:
    return inventory.save(None, thing)


def _launch(team: Team, dcs: list[DataCenter], admin: User, prefill: dict[str, Any] | None) -> Run:
    """A new run of the demo's job, or its first; of a job with this section `prefill`, where there is one."""
    plan = Plan.objects.filter(team=team, name=PLAN).first() or _plan(team, dcs, admin)
    jobs = Job.objects.filter(team=team, plan=plan).order_by("pk")
    same = {"document__prefill": prefill} if prefill else {"document__prefill__isnull": True}
    job = jobs.filter(**same).first()
    if job:
        return launch_run(admin, job)
    best = plan.result["best"]
    if prefill is None:
        return launch_plan(admin, plan, best)
    planned = train_document(plan.request, plan.result["options"][best], plan.training)
    return launch_plan(admin, plan, best, document={**planned, "prefill": prefill})


def _plan(team: Team, dcs: list[DataCenter], admin: User) -> Plan:
    values = {"source": "times", "datacenters": dcs, **TIMES, **SHAPE, **TRAINING}
    return create_plan(
        admin,
        team=team,
        name=PLAN,
        request=compose.request_of(values),
        training=compose.training_of(values),
    )
