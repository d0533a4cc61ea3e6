"""Placement: questions from inventory, catalogue or a document; pages show what the command answers."""

import csv
import io
import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from engine.inputs import parse
from engine.plan.placement import scenarios
from engine.plan.placement.place import place
from engine.plan.placement.problem import data_cost_s, hop_cost_s, problem_of
from engine.plan.placement.request import PlacementRequest
from tests.site.computations import placement, placement_question
from tests.site.world import World, make_dc
from webapp.computations.computing import work_at
from webapp.computations.models import Computation, ComputationState
from webapp.inventory.models import WanLink
from webapp.placement.forms import REGIONS, PlacementForm, document_of
from webapp.placement.map import placement_map
from webapp.placement.network import AWS, network_from, of_case, of_document, of_regions

DOCUMENT = {
    "latency_ms": [[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0]],
    "bandwidth_gbps": [[1, 10, 1, 1], [10, 1, 1, 1], [1, 1, 1, 10], [1, 1, 10, 1]],
    "stages": 2,
    "data_parallel": 2,
    "dp_bytes": 1e8,
    "pp_bytes": 1e6,
}
FORM: dict[str, Any] = {
    "name": "here",
    "source": "inventory",
    "device": "gpu",
    "stages": 4,
    "dp_bytes": 1e8,
    "pp_bytes": 1e6,
    "evaluations": 300,
    "baselines": "on",
}


def filled(world: World, **changes: Any) -> PlacementForm:
    data = {**FORM, "team": world.team.pk, "datacenters": [dc.pk for dc in world.dcs], **changes}
    files = {"file": data.pop("file")} if "file" in data else None
    given = {name: value for name, value in data.items() if value is not None}
    return PlacementForm(given, files, user=world.users["operator"])


@pytest.fixture
def viewer(world: World) -> Client:
    return world.client("viewer")


@pytest.mark.django_db
def test_the_matrices_of_the_inventory_are_its_links(world: World) -> None:
    form = filled(world)
    assert form.is_valid(), form.errors
    document = document_of(form.question)
    latency, gbps = document["latency_ms"], document["bandwidth_gbps"]
    assert latency.shape == (12, 12)  # three data centres of a node of four GPUs: east, mid, west
    assert (document["stages"], document["data_parallel"]) == (4, 3)
    assert (latency[0, 3], latency[0, 4], latency[4, 8]) == (0, 10, 15)
    # No link between east and west: over mid, with both latencies and the narrower link, as on the page; the
    # search counts it so slow that nothing is sent over it.
    network = form.question["network"]
    assert (latency[0, 8], network["bandwidth_gbps"][0][2], gbps[0, 8]) == (25, 1, 1e-6)
    assert "No link connects east – west" in network["note"]
    assert gbps[0, 3] == 300 * 8  # NVLink of an A100, GB/s a direction
    assert np.array_equal(latency, latency.T)
    assert np.array_equal(gbps, gbps.T)
    nodes = filled(world, device="node", stages=3)
    assert nodes.is_valid(), nodes.errors
    assert document_of(nodes.question)["latency_ms"].tolist() == [[0, 10, 25], [10, 0, 15], [25, 15, 0]]


@pytest.mark.django_db
@pytest.mark.parametrize("stages", [3, 4, 6, 12])
def test_no_pipeline_and_no_group_leads_over_places_without_a_link(world: World, stages: int) -> None:
    form = filled(world, stages=stages)
    assert form.is_valid(), form.errors
    network = network_from(form.question["network"])
    result = place(parse(PlacementRequest, document_of(form.question)))
    hops = [hop for pipeline in result.pipelines for hop in itertools.pairwise(pipeline)]
    inside = [pair for group in result.groups for pair in itertools.combinations(group, 2)]
    met = {frozenset(network.place_of[device] for device in pair) for pair in (*hops, *inside)}
    assert met <= {frozenset(pair) for pair in ((0,), (1,), (2,), (0, 1), (1, 2))}


@pytest.mark.django_db
def test_a_chain_of_three_places_is_not_cut_into_two_stages_without_cost(world: World) -> None:
    """Each of two groups of six has all of east or of west, whose match is four of mid: one has fewer."""
    form = filled(world, stages=2)
    assert form.is_valid(), form.errors
    assert place(parse(PlacementRequest, document_of(form.question))).cost_s > 1e3


@pytest.mark.django_db
def test_surplus_devices_are_left_out_where_they_are_most(world: World) -> None:
    form = filled(world, stages=5, data_parallel=2)
    assert form.is_valid(), form.errors
    network = network_from(form.question["network"])
    assert [network.place_of.count(i) for i in range(3)] == [3, 3, 4]
    parse(PlacementRequest, document_of(form.question))


@pytest.mark.django_db
def test_a_model_gives_the_bytes(world: World) -> None:
    form = filled(world, model="tiny", batch=12, dp_bytes=None, pp_bytes=None, stages=6)
    assert form.is_valid(), form.errors
    document = form.question["document"]
    # fp16: 6 layers on 6 stages, 12 sequences of 64 tokens on 2 pipelines, width 64
    assert document["pp_bytes"] == 6 * 64 * 64 * 2
    from engine.model.presets import preset

    assert document["dp_bytes"] * 6 == preset("tiny").parameters * 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stages": 5}, "stages"),
        ({"stages": None}, "stages"),
        ({"data_parallel": 4}, "data_parallel"),
        ({"dp_bytes": None}, "dp_bytes"),
        ({"dp_bytes": -1}, "dp_bytes"),
        ({"dp_bytes": "nan"}, "dp_bytes"),
        ({"evaluations": 10**9}, "evaluations"),
        ({"datacenters": []}, "datacenters"),
        ({"name": ""}, "name"),
        ({"source": "regions", "regions": []}, "regions"),
        ({"source": "regions", "regions": ["Atlantis"]}, "regions"),
        ({"source": "regions", "regions": list(REGIONS), "each": 200}, "each"),
        ({"source": "case", "case": "none"}, "case"),
        ({"source": "document", "document": ""}, "document"),
        ({"source": "document", "document": "[1, 2"}, "document"),
        ({"source": "document", "document": "[1, 2]"}, "document"),
        ({"source": "document", "document": json.dumps({**DOCUMENT, "stages": 3})}, "document"),
        ({"source": "document", "document": json.dumps({**DOCUMENT, "stagess": 3})}, "document"),
        ({"source": "document", "file": SimpleUploadedFile("x.json", b"\xff\xfe")}, "file"),
    ],
)
def test_bad_input_stands_at_its_field(world: World, change: dict[str, Any], field: str) -> None:
    assert field in filled(world, **change).errors


@pytest.mark.django_db
def test_data_centres_that_nothing_joins_are_refused(world: World) -> None:
    lonely = make_dc(world.team, "island")
    form = filled(world, datacenters=[world.dcs[0].pk, lonely.pk])
    assert "links" in str(form.errors["datacenters"]) or "nodes" in str(form.errors["datacenters"])
    WanLink.objects.all().delete()
    form = filled(world, stages=4, datacenters=[dc.pk for dc in world.dcs[:2]])
    assert "connected by WAN links" in str(form.errors["datacenters"])


@pytest.mark.django_db
def test_a_file_is_read_like_pasted_text(world: World) -> None:
    text = json.dumps(DOCUMENT)
    for change in ({"document": text}, {"file": SimpleUploadedFile("x.json", text.encode())}):
        form = filled(world, source="document", **change)
        assert form.is_valid(), form.errors
        assert form.question["document"] == DOCUMENT


@given(st.lists(st.sampled_from(REGIONS), min_size=2, max_size=5, unique=True), st.integers(1, 4))
def test_regions_survive_being_kept(names: list[str], each: int) -> None:
    network = of_regions(names, each)
    network_again = network_from(json.loads(json.dumps(network.as_dict())))
    assert network_again == network
    pairs = scenarios.aws_regions()
    latency, gbps = network_again.matrices()
    for i in range(network.devices):
        for j in range(network.devices):
            a, b = (names[k // each] for k in (i, j))
            wanted = (0, 0) if i == j else pairs.get((a, b), (5.0, 2.0))
            assert (latency[i, j], gbps[i, j]) == wanted


@pytest.mark.parametrize("name", scenarios.names())
def test_a_case_by_place_is_the_case(name: str) -> None:
    case, network = scenarios.case(name), of_case(name)
    latency, gbps = network.matrices()
    off = ~np.eye(64, dtype=bool)
    assert np.array_equal(latency[off], case.latency_ms[off])
    assert np.array_equal(gbps[off], case.bandwidth_gbps[off])
    drawn = placement_map(network, [list(range(64))], [[i] for i in range(64)])
    assert (drawn is not None) == (name in ("multi-dc", "regional", "worldwide"))
    if drawn is not None:
        assert sum(len(plate.squares) + plate.left_out for plate in drawn.plates) == 64


def test_every_region_of_the_paper_is_on_the_map() -> None:
    assert set(REGIONS) <= set(AWS)
    assert all(place.latitude is not None for place in of_regions(REGIONS, 1).places)


@pytest.mark.django_db
def test_the_page_shows_what_the_command_answers(world: World, viewer: Client) -> None:
    computation = placement(world)
    page = viewer.get(reverse("placement:placement-detail", args=[computation.pk]))
    on_page = page.context["found"]
    document = viewer.get(reverse("placement:placement-document", args=[computation.pk])).json()
    request = parse(PlacementRequest, document)
    answer = place(request).as_dict()
    timeless = {name for name in answer if name not in ("search_s", "baselines")}
    assert {n: on_page[n] for n in timeless} == json.loads(json.dumps({n: answer[n] for n in timeless}))
    problem = problem_of(request)
    cost = data_cost_s(problem, np.array(on_page["groups"])).max()
    cost += hop_cost_s(problem, np.array(on_page["pipelines"])).sum()
    assert on_page["cost_s"] == pytest.approx(cost)
    assert len(computation.answer["baselines"]) == 4
    assert {b["name"] for b in computation.answer["baselines"] if b["history"]} == {
        "plain genetic",
        "the paper's search",
    }


@pytest.mark.django_db
def test_every_table_is_a_file_in_full(world: World, viewer: Client) -> None:
    computation = placement(world)
    page = viewer.get(reverse("placement:placement-detail", args=[computation.pk]))
    for name, table in page.context["tables"].items():
        text = viewer.get(reverse("placement:placement-table", args=[computation.pk, name])).content.decode()
        assert len(list(csv.reader(io.StringIO(text)))) == len(table.rows) + 1
    devices = [
        row[2:]
        for row in csv.reader(
            io.StringIO(
                viewer.get(
                    reverse("placement:placement-table", args=[computation.pk, "pipelines"])
                ).content.decode()
            )
        )
    ][1:]
    assert len({device for pipeline in devices for device in pipeline}) == 12
    assert viewer.get(reverse("placement:placement-table", args=[computation.pk, "none"])).status_code == 404


@pytest.mark.django_db
def test_from_the_form_to_the_answer_and_back_into_the_form(world: World, client: Client) -> None:
    client.force_login(world.users["operator"])
    data = {**FORM, "team": world.team.pk, "datacenters": [dc.pk for dc in world.dcs]}
    response = client.post(reverse("placement:placement-create"), data)
    computation = Computation.objects.get(kind="placement")
    address = reverse("placement:placement-detail", args=[computation.pk])
    assert response.url == address
    assert b"hx-trigger" in client.get(address).content
    work_at(computation.pk)
    assert b"hx-trigger" not in client.get(address).content
    again = client.get(reverse("placement:placement-create"), {"from": str(computation.pk)})
    initial = again.context["form"].initial
    assert (initial["stages"], initial["datacenters"]) == (4, [dc.pk for dc in world.dcs])
    assert client.get(reverse("placement:placement-create"), {"from": "x"}).status_code == 404


@pytest.mark.django_db
def test_what_is_stopped_keeps_the_best_so_far(world: World) -> None:
    from webapp.computations import services

    question = {**placement_question(world), "baselines": True}
    computation = services.start(
        world.users["operator"], team=world.team, kind="placement", name="x", request=question
    )
    from webapp.computations import computing

    def stopping(request: Any, wires: Any) -> Any:
        services.ask_to_cancel(world.users["operator"], computation)
        yield from original.work(request, wires)

    original = computing.KINDS["placement"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(computing.KINDS, "placement", replace(original, work=stopping))
        work_at(computation.pk)
    computation.refresh_from_db()
    assert computation.state == ComputationState.CANCELLED
    assert computation.answer["placement"]["groups"]
    assert computation.answer["baselines"] == []


@pytest.mark.django_db
def test_a_placement_is_no_comparison_of_schedules(world: World, viewer: Client) -> None:
    computation = placement(world)
    assert viewer.get(reverse("schedules:schedule-detail", args=[computation.pk])).status_code == 404
    names = viewer.get(reverse("schedules:schedule-list")).content.decode()
    assert str(computation.pk) not in names
    assert str(computation.pk) in viewer.get(reverse("placement:placement-list")).content.decode()


def test_a_document_is_shown_device_by_device() -> None:
    network = of_document(parse(PlacementRequest, DOCUMENT))
    assert network.latency_ms[0] == [None, 1, 9, 9]
    assert network.labels == ["0", "1", "2", "3"]
