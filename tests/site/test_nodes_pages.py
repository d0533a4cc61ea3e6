"""The list of nodes, and what the page of one says of its state."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from engine import __version__
from tests.events import event
from tests.site.world import make_node
from webapp.inventory import services
from webapp.inventory.models import Node
from webapp.inventory.selectors.nodes import mismatch
from webapp.jobs.allocate import allocate


@pytest.fixture
def states(world: Any) -> dict[str, Node]:
    """Nodes in every state that the list can be filtered by."""
    now, old = timezone.now(), timezone.now() - timedelta(minutes=9)
    world.hear()
    Node.objects.filter(name="east-1").update(version=__version__)
    Node.objects.filter(name="mid-1").update(version="99.1.0")
    Node.objects.filter(name="west-1").update(draining_since=now)
    dc, enrolled = world.dcs[0], {"acl_sha256": "0" * 64}
    make_node(dc, "quiet", last_seen=old, version=__version__, **enrolled)
    make_node(dc, "apart", host="10.7.7.7")
    return {node.name: node for node in Node.objects.select_related("dc__team")}


def names(world: Any, query: str) -> set[str]:
    table = world.client("viewer").get(f"/nodes/?{query}").context["table"]
    return {row.record.name for row in table.rows}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=online", {"east-1", "mid-1", "west-1"}),
        ("state=silent", {"quiet"}),
        ("state=never", {"apart"}),
        ("state=draining", {"west-1"}),
        ("state=version", {"mid-1"}),
        ("state=apart", {"apart"}),
        ("q=10.7", {"apart"}),
        ("q=EAST", {"east-1"}),
        ("device=emulated&state=version", {"mid-1"}),
    ],
)
def test_the_list_is_filtered(world: Any, states: dict[str, Node], query: str, expected: set[str]) -> None:
    assert names(world, query) == expected


def test_a_data_centre_that_drains_shows_its_nodes_as_draining(world: Any, states: dict[str, Node]) -> None:
    services.drain(world.users["operator"], world.dcs[0])
    assert names(world, "state=draining") == {"west-1", "east-1", "quiet", "apart"}


def test_free_and_busy_gpus_are_those_that_a_run_could_have(world: Any) -> None:
    world.hear()
    run = world.launch()
    assert allocate(run)
    make_node(world.dcs[0], "east-2", gpus=3, acl_sha256="0" * 64, last_seen=timezone.now())
    make_node(world.dcs[0], "east-3", gpus=3, acl_sha256="0" * 64)
    table = world.client("viewer").get("/nodes/?sort=-busy").context["table"]
    shown = {row.record.name: (row.get_cell("busy"), row.get_cell("free")) for row in table.rows}
    assert shown["east-1"] == ("4", "0")
    assert shown["east-2"] == ("0", "3")
    assert shown["east-3"] == ("0", "0"), "a node that was never heard of has nothing to give"
    assert [row.record.busy for row in table.rows] == [4, 4, 4, 0, 0]


def test_a_page_says_what_keeps_its_node_from_work(world: Any, states: dict[str, Node]) -> None:
    client = world.client("operator")

    def text(name: str) -> str:
        return " ".join(client.get(f"/nodes/{states[name].pk}/").content.decode().split())

    assert "its agent is 99.1.0, the site" in text("mid-1")
    assert "update the site to 99.1" in text("mid-1")
    assert "Draining since" in text("west-1")
    assert "It has not joined yet" in text("apart")
    assert "Make a join command" in text("apart")
    assert "gets no more work" not in text("east-1")
    states["east-1"].dc.draining_since = timezone.now()
    states["east-1"].dc.save()
    assert "east</a> is draining since" in text("east-1")


def test_what_an_agent_offers_is_held_against_what_was_declared() -> None:
    node = Node(gpus=4, device="cuda", seen_gpus=4, seen_device="cuda")
    assert mismatch(node) == ""
    gpu = {"name": "NVIDIA H200", "memory_bytes": 150 * 10**9}
    node.seen_hardware = {"gpus": [gpu] * 4, "error": ""}
    assert mismatch(node) == ""
    node.seen_hardware = {"gpus": [gpu] * 3, "error": ""}
    assert mismatch(node) == "4 CUDA GPUs are declared, but torch sees 3 there."
    node.seen_hardware = {"gpus": [], "error": "torch sees no CUDA device"}
    assert mismatch(node).endswith("torch sees 0 there: torch sees no CUDA device.")
    node.seen_gpus = 2
    assert mismatch(node) == "4 GPUs are declared here, but the agent offers 2."
    node.seen_gpus, node.seen_device = 4, "cpu"
    assert "the agent offers cpu" in mismatch(node)


def test_hardware_of_any_shape_is_shown_or_left_out(world: Any) -> None:
    client = world.client("viewer")
    node = world.nodes[0]
    strange: tuple[Any, ...] = (
        {"gpus": [{"name": "A" * 500, "memory_bytes": "many"}, 7], "cores": -1, "python": 3},
        {"gpus": "x"},
        {},
        {"error": "<script>"},
        {"x": "y" * 100_000},
    )
    for number, hardware in enumerate(strange):
        seen = timezone.now() + timedelta(seconds=number)
        services.record_heartbeat(node.name, seen, event("heartbeat", ranks=[], hardware=hardware))
        page = client.get(f"/nodes/{node.pk}/")
        assert page.status_code == 200, hardware
        assert b"<script>" not in page.content.split(b">Agent<")[1].split(b"Ranks")[0]


def test_the_form_chooses_ports_and_refuses_those_that_are_taken(world: Any) -> None:
    client = world.client("operator")
    form = {"name": "x-1", "pool": world.nodes[0].pool_id, "gpus": 2, "device": "cpu", "host": "10.4.4.4"}
    assert client.post("/nodes/new/", form, follow=True).status_code == 200
    first = Node.objects.get(name="x-1")
    client.post("/nodes/new/", form | {"name": "x-2"})
    second = Node.objects.get(name="x-2")
    assert second.port_from > first.port_to
    wrong = {"port_from": first.port_from, "port_to": first.port_to}
    refused = client.post("/nodes/new/", form | {"name": "x-3"} | wrong)
    assert refused.status_code == 422
    assert "x-1 on the same host already uses" in refused.context["form"].errors["port_from"][0]
    for fields, at in (
        ({"port_from": 30000}, "port_to"),
        ({"port_from": 30100, "port_to": 30000}, "port_to"),
    ):
        assert at in client.post("/nodes/new/", form | {"name": "x-4"} | fields).context["form"].errors
    for host in ("a b", "x/y", "-x", "http://x"):
        assert (
            "host" in client.post("/nodes/new/", form | {"name": "x-5", "host": host}).context["form"].errors
        )
