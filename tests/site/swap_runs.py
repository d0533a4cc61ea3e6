"""Runs of workers that swap, for tests of the site: the launch form's values, and runs with their GPUs."""

from typing import Any

from tests.site.world import World, make_node
from webapp.inventory.models import Node, WanLink
from webapp.jobs.allocate import allocate
from webapp.jobs.models import Run
from webapp.jobs.swap_document import swap_document
from webapp.jobs.swap_form import FIRST

# Six blocks that do not fit the GPU, on the nodes of east: a worker on each.
FORM: dict[str, Any] = {
    "name": "swapped",
    "device": "cpu",
    "workers": 3,
    "family": "gpt",
    "layers": 6,
    "hidden": 32,
    "heads": 2,
    "seq": 16,
    "memory_gib": 1_500_000 / 2**30,
    "host_to_device_gb_s": 0.04,
    "gradients": "host",
    "accumulation": 1,
    "microbatches": 4,
    "micro_batch": 2,
    "forward_ms": 20,
    "recompute_ms": 20,
    "backward_ms": 40,
    "steps": 3,
    "lr": 1e-3,
    "seed": 7,
    "dtype": "fp64",
}


def three_nodes(world: World, device: str = "cpu") -> list[Node]:
    """Three nodes of two GPUs in east, and the links that workers of all data centres need."""
    east, _, west = world.dcs
    WanLink.objects.create(a=east, b=west, latency_ms=20, bandwidth_gbps=1)
    fields = {"device": device, "gpus": 2, "acl_sha256": "0" * 64, "host": "127.0.0.1"}
    return [make_node(east, f"swap-{number}", **fields) for number in (1, 2, 3)]


def swap_job(world: World) -> dict[str, Any]:
    """The document of workers that swap on one emulated GPU of each of two data centres."""
    return swap_document({**FIRST, "datacenters": world.dcs[:2], "workers": 2})


def values(world: World, **changes: Any) -> dict[str, Any]:
    """What the form sends for a launch in east."""
    sent = {**FORM, "team": world.team.pk, "datacenters": [world.dcs[0].pk], **changes}
    return {name: value for name, value in sent.items() if value is not None}


def launched(world: World, **changes: Any) -> Run:
    """A run that an operator has launched with the form."""
    answer = world.client("operator").post("/runs/swap/", values(world, **changes))
    assert answer.status_code == 302, answer.context["form"].errors
    return Run.objects.latest("pk")


def placed(world: World, **changes: Any) -> Run:
    """The same with its GPUs, a worker on each of the three nodes."""
    nodes = three_nodes(world, changes.get("device", "cpu"))
    world.hear(*nodes)
    run = launched(world, **changes)
    assert allocate(run)
    run.refresh_from_db()
    return run
