"""A team with the demo's inventory, users of every role, and a second team that must see none of it."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.hashers import make_password
from django.test import Client
from django.utils import timezone

from tests.site.logins import logged_in
from webapp.accounts.models import Membership, Role, Team, User
from webapp.computations import liveness
from webapp.computations.models import Beat
from webapp.inventory.models import DataCenter, Device, GpuPool, Node, WanLink
from webapp.jobs.models import Run
from webapp.jobs.services import launch_plan
from webapp.planning import compose
from webapp.planning.models import Plan
from webapp.planning.services import create_plan

VALUES = {
    "source": "times",
    "forward_ms": 20.0,
    "backward_ms": 40.0,
    "recompute_ms": 20.0,
    "activation_bytes": 5_000_000,
    "partitions": 6,
    "microbatches": 4,
    "policy": "atlas",
    "order": "gpus",
    "objective": "throughput",
    "layers": 6,
    "hidden": 32,
    "heads": 2,
    "seq": 32,
    "micro_batch": 1,
    "steps": 50,
    "lr": 1e-3,
    "seed": 0,
}


@dataclass
class World:
    team: Team
    users: dict[str, User]
    dcs: list[DataCenter]
    nodes: list[Node]
    link: WanLink
    plan: Plan

    def client(self, name: str) -> Client:
        return logged_in(self.users[name])

    def launch(self) -> Run:
        return launch_plan(self.users["operator"], self.plan, self.plan.result["best"])

    def hear(self, *nodes: Node, ranks: Any = ()) -> None:
        """Heartbeats of `nodes` (all of them) just now, and an ingest that has listened for long."""
        for node in nodes or self.nodes:
            Node.objects.filter(pk=node.pk).update(last_seen=timezone.now(), seen_ranks=list(ranks))
        liveness.beat()
        Beat.objects.update(since=timezone.now() - timedelta(minutes=5))


def make_user(name: str, team: Team, role: Role) -> User:
    user = User.objects.create_user(name)  # no password: hashing one takes longer than a test
    Membership.objects.create(user=user, team=team, role=role)
    return user


def make_dc(
    team: Team, name: str, *, gpu_types: tuple[str, ...] = ("a100-80g",), **fields: Any
) -> DataCenter:
    """A data centre with a pool of each GPU type."""
    dc = DataCenter.objects.create(team=team, name=name, **fields)
    for gpu_type in gpu_types:
        GpuPool.objects.create(dc=dc, gpu_type=gpu_type)
    return dc


def make_node(dc: DataCenter, name: str, *, pool: GpuPool | None = None, **fields: Any) -> Node:
    """A node in `pool`, or in the first pool of `dc`."""
    return Node.objects.create(
        dc=dc, pool=pool or dc.pools.order_by("pk")[0], name=name, **{"gpus": 1, **fields}
    )


def make_world() -> World:
    """The world, from nothing: rows of a kind are written at once, since most tests of the site begin so."""
    team, other = Team.objects.bulk_create([Team(name="Research"), Team(name="Others")])
    names = [*map(str, Role), "stranger"]
    # No password: hashing one takes longer than a test.
    people = User.objects.bulk_create(User(username=name, password=make_password(None)) for name in names)
    users = dict(zip(names, people, strict=True))
    Membership.objects.bulk_create(Membership(user=users[role], team=team, role=role) for role in Role)
    Membership.objects.create(user=users["stranger"], team=other, role=Role.ADMIN)
    dcs = DataCenter.objects.bulk_create(DataCenter(team=team, name=name) for name in ("east", "mid", "west"))
    pools = GpuPool.objects.bulk_create(GpuPool(dc=dc, gpu_type="a100-80g") for dc in dcs)
    nodes = Node.objects.bulk_create(
        Node(
            dc=pool.dc,
            pool=pool,
            name=f"{pool.dc.name}-1",
            gpus=4,
            device=Device.EMULATED,
            acl_sha256="0" * 64,
        )
        for pool in pools
    )
    link, _ = WanLink.objects.bulk_create(
        [
            WanLink(a=dcs[0], b=dcs[1], latency_ms=10, bandwidth_gbps=1),
            WanLink(a=dcs[1], b=dcs[2], latency_ms=15, bandwidth_gbps=1),
        ]
    )
    values = {**VALUES, "datacenters": dcs}
    plan = create_plan(
        users["operator"],
        team=team,
        name="three",
        request=compose.request_of(values),
        training=compose.training_of(values),
    )
    return World(team=team, users=users, dcs=dcs, nodes=nodes, link=link, plan=plan)
