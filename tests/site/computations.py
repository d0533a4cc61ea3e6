"""Computations for tests: asked for, claimed, and answered without a worker."""

from typing import Any

from tests.engine import fig6
from tests.site.world import World
from webapp.computations import services as computations
from webapp.computations.computing import work_at
from webapp.computations.models import Computation, ComputationKind
from webapp.inventory.models import WanLink
from webapp.placement.forms import PlacementForm
from webapp.planning import services

SCENARIO: dict[str, Any] = {name: value for name, value in fig6.FIG6.items() if name != "policy"}
QUESTION: dict[str, Any] = {"scenario": SCENARIO, "policies": ["gpipe", "atlas"], "unit": "slot"}
SWEEP: dict[str, Any] = {
    "scenario": SCENARIO,
    "policies": ["varuna", "atlas"],
    "parameter": "wan.latency",
    "values": [0, 1, 2],
}

# What is trained on a placement of four stages.
PLACED_TRAINING: dict[str, Any] = {
    "model": {"layers": 4, "hidden": 32, "heads": 2, "seq": 32},
    "microbatches": 4,
    "micro_batch": 1,
    "policy": "1f1b",
    "times_ms": {"forward": 20, "backward": 40},
    "steps": 5,
    "lr": 1e-3,
    "seed": 0,
}


def queued(
    world: World, request: dict[str, Any] = QUESTION, kind: str = ComputationKind.SCHEDULES
) -> Computation:
    """A computation that waits for its worker."""
    return computations.start(
        world.users["operator"], team=world.team, kind=kind, name="Figure 6", request=request
    )


def plan_asked_for(world: World, name: str = "large") -> Computation:
    """A plan that waits for its worker."""
    return services.ask_for_plan(
        world.users["operator"],
        team=world.team,
        name=name,
        request=world.plan.request,
        training=world.plan.training,
        key=name,
    )


def claimed(world: World) -> Computation:
    """A computation that a worker has begun."""
    computation = computations.claim(queued(world).pk)
    assert computation is not None
    return computation


def answered(
    world: World, request: dict[str, Any] = QUESTION, kind: str = ComputationKind.SCHEDULES
) -> Computation:
    """A computation with its answer."""
    computation = queued(world, request, kind)
    work_at(computation.pk)
    computation.refresh_from_db()
    return computation


def placement_question(world: World) -> dict[str, Any]:
    """GPUs of the world's data centres, four stages of three."""
    data = {
        "team": world.team.pk,
        "name": "here",
        "source": "inventory",
        "device": "gpu",
        "stages": 4,
        "datacenters": [dc.pk for dc in world.dcs],
        "dp_bytes": 1e8,
        "pp_bytes": 1e6,
        "evaluations": 300,
        "baselines": "on",
    }
    form = PlacementForm(data, user=world.users["operator"])
    assert form.is_valid(), form.errors
    return form.question


def placement(world: World) -> Computation:
    """The world's one answered placement."""
    existing = Computation.objects.filter(team=world.team, kind="placement", state="done").first()
    return existing or answered(world, placement_question(world), ComputationKind.PLACEMENT)


def joined_placement(world: World) -> Computation:
    """The same where every two data centres are joined, so that any pipeline can be run."""
    WanLink.objects.get_or_create(a=world.dcs[0], b=world.dcs[2], latency_ms=40, bandwidth_gbps=1)
    return placement(world)


def comparison(world: World) -> Computation:
    """The world's one answered comparison."""
    existing = Computation.objects.filter(team=world.team, kind="schedules", state="done").first()
    return existing or answered(world)
