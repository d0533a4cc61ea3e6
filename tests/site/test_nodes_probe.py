"""Probes between nodes: asked of agents, answered by events, shown as a matrix."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from engine.errors import InputError
from tests.events import event
from webapp.inventory import services
from webapp.inventory.dispatch import BrokerDown
from webapp.inventory.models import LinkMeasurement, Node, NodeProbe
from webapp.inventory.selectors.nodes import latest_probes, reach_matrix
from webapp.inventory.services.probes import KEPT


class Agents:
    def __init__(self, away: tuple[str, ...] = ()) -> None:
        self.asked: dict[str, dict[str, Any]] = {}
        self.away = away

    def __call__(self, node_name: str, task: str, kwargs: Any) -> str:
        assert task == "workers.probe_peers"
        if node_name in self.away:
            raise BrokerDown(node_name, "refused")
        self.asked[node_name] = dict(kwargs)
        return "id"


def fresh(world: Any) -> list[Node]:
    for number, node in enumerate(world.nodes):
        Node.objects.filter(pk=node.pk).update(host=f"10.0.{number}.1")
    world.hear()
    return list(Node.objects.select_related("dc__team").order_by("name"))


def ask(world: Any, nodes: list[Node], agents: Agents, commit: Any) -> str:
    with commit(execute=True):
        rows = services.probe_nodes(
            world.users["operator"], nodes[0], [(a, b) for a in nodes for b in nodes], send=agents
        )
    return rows[0].probe


def answer(probe: str, to: str, rtt_ms: float | None = 10.0, **changes: Any) -> Any:
    result = {
        "node": to,
        "ok": rtt_ms is not None,
        "rtt_ms": rtt_ms,
        "offset_ms": 0.1,
        "error": "",
        **changes,
    }
    return event("probe", probe=probe, results=[result])


def test_every_agent_is_asked_with_addresses_and_ports(
    world: Any, django_capture_on_commit_callbacks: Any
) -> None:
    agents, nodes = Agents(), fresh(world)
    ask(world, nodes, agents, django_capture_on_commit_callbacks)
    assert set(agents.asked) == {"east-1", "mid-1", "west-1"}
    call = agents.asked["east-1"]
    assert call["port"] == nodes[0].probe_port
    assert call["peers"] == [
        {"node": "mid-1", "host": "10.0.1.1", "port": nodes[1].probe_port},
        {"node": "west-1", "host": "10.0.2.1", "port": nodes[2].probe_port},
    ]
    assert len({kwargs["secret"] for kwargs in agents.asked.values()}) == 1
    assert NodeProbe.objects.filter(ok=None).count() == 6


def test_answers_become_rows_a_matrix_and_the_links_history(
    world: Any, django_capture_on_commit_callbacks: Any
) -> None:
    nodes = fresh(world)
    probe = ask(world, nodes, Agents(), django_capture_on_commit_callbacks)
    assert services.record_probe("east-1", answer(probe, "mid-1", 21.0)) == 1
    assert services.record_probe("east-1", answer(probe, "mid-1", 99.0)) == 0, "the first answer stays"
    assert services.record_probe("west-1", answer(probe, "mid-1", None, error="10.0.1.1:29599: refused")) == 1
    matrix = reach_matrix(world.users["viewer"], nodes)
    assert matrix[0]["cells"][1].rtt_ms == 21.0
    assert matrix[2]["cells"][1].ok is False
    assert matrix[1]["cells"][0].is_waiting
    assert matrix[0]["cells"][0] is None
    measured = LinkMeasurement.objects.get(link=world.link, source="probe")
    assert measured.latency_ms == pytest.approx(10.5), "one way is half of the round trip"
    page = world.client("viewer").get("/nodes/reach/").content.decode()
    assert "21.00" in page
    assert "not reached" in page
    detail = world.client("viewer").get(f"/nodes/{nodes[0].pk}/").content.decode()
    assert "Reached" in detail
    assert reach_matrix(world.users["stranger"], nodes)[0]["cells"][1] is None


def test_nodes_at_one_address_measure_no_wan(world: Any, django_capture_on_commit_callbacks: Any) -> None:
    world.hear()
    nodes = list(Node.objects.select_related("dc__team").order_by("name"))
    probe = ask(world, nodes, Agents(), django_capture_on_commit_callbacks)
    services.record_probe("east-1", answer(probe, "mid-1", 0.1))
    assert NodeProbe.objects.filter(ok=True).count() == 1
    assert not LinkMeasurement.objects.filter(source="probe").exists()


def test_a_node_answers_for_itself_alone_and_only_what_was_asked(
    world: Any, django_capture_on_commit_callbacks: Any
) -> None:
    nodes = fresh(world)
    probe = ask(world, nodes, Agents(), django_capture_on_commit_callbacks)
    for results in (
        answer("0" * 32, "mid-1"),
        answer(probe, "east-1"),
        answer(probe, "nobody"),
    ):
        assert services.record_probe("east-1", results) == 0
    assert services.record_probe("stranger", answer(probe, "mid-1")) == 0
    services.record_probe("east-1", answer(probe, "mid-1", None, ok=True))
    assert NodeProbe.objects.get(source=nodes[0], target=nodes[1]).ok is False, "no time, no answer"


def test_agents_that_cannot_be_asked_or_do_not_answer(
    world: Any, django_capture_on_commit_callbacks: Any
) -> None:
    nodes = fresh(world)
    ask(world, nodes, Agents(away=("mid-1",)), django_capture_on_commit_callbacks)
    assert set(NodeProbe.objects.filter(ok=False).values_list("source__name", flat=True)) == {"mid-1"}
    NodeProbe.objects.update(asked_at=timezone.now() - timedelta(seconds=30))
    row = next(row for row in latest_probes(world.users["viewer"], nodes[0]) if row.source == nodes[0])
    assert row.is_unanswered


def test_who_is_silent_is_reached_for_but_not_asked(
    world: Any, django_capture_on_commit_callbacks: Any
) -> None:
    nodes = fresh(world)
    Node.objects.filter(pk=nodes[2].pk).update(last_seen=None)
    nodes = list(Node.objects.select_related("dc__team").order_by("name"))
    agents = Agents()
    ask(world, nodes, agents, django_capture_on_commit_callbacks)
    assert set(agents.asked) == {"east-1", "mid-1"}
    assert [peer["node"] for peer in agents.asked["mid-1"]["peers"]] == ["east-1", "west-1"]
    with pytest.raises(InputError, match="no agent is online"):
        services.probe_nodes(world.users["operator"], nodes[2], [(nodes[2], nodes[0])])


def test_old_answers_go(world: Any, django_capture_on_commit_callbacks: Any) -> None:
    nodes = fresh(world)[:2]
    for _ in range(KEPT + 3):
        probe = ask(world, nodes, Agents(), django_capture_on_commit_callbacks)
        services.record_probe("east-1", answer(probe, "mid-1"))
    assert NodeProbe.objects.filter(source=nodes[0], target=nodes[1]).count() == KEPT


def test_from_the_pages(world: Any) -> None:
    nodes = fresh(world)
    client = world.client("operator")
    assert client.post(f"/nodes/{nodes[0].pk}/probe/").status_code == 302
    assert NodeProbe.objects.count() == 4
    client.post(f"/links/{world.link.pk}/probe/")
    assert NodeProbe.objects.count() == 6
    client.post(f"/datacenters/{world.dcs[0].pk}/probe/")
    assert NodeProbe.objects.count() == 12


def test_the_result_stands_where_it_was_asked_for(
    world: Any, django_capture_on_commit_callbacks: Any
) -> None:
    """The page of a link, of a node and the matrix follow a test until its last answer is there."""
    client, link = world.client("operator"), world.link
    world.hear()
    pages = {
        f"/links/{link.pk}/probe/": f"/links/{link.pk}/#reach",
        f"/nodes/{world.nodes[0].pk}/probe/": f"/nodes/{world.nodes[0].pk}/#reach",
        f"/datacenters/{world.dcs[0].pk}/probe/": "/nodes/reach/",
    }
    for response, there in pages.items():
        NodeProbe.objects.all().delete()
        assert client.post(response)["Location"] == there
        follows = f'hx-get="{there.partition("#")[0]}" hx-trigger="every 1s"'
        assert follows in client.get(there).content.decode()
        NodeProbe.objects.update(ok=True, rtt_ms=20.5, at=timezone.now())
        page = client.get(there).content.decode()
        assert follows not in page
        assert "20.50" in page
    NodeProbe.objects.filter(source=world.nodes[0]).update(ok=False, rtt_ms=None, error="no route to host")
    page = client.get(f"/links/{link.pk}/").content.decode()
    assert "no route to host" in page
    assert "1 of 2 tests reached the other node; round trip 20.50 ms (median)" in page
