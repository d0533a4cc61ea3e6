"""Network design and swap plan: pages show what the commands answer, addresses are permalinks."""

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client

from engine.inputs import parse
from engine.plan.network.design import design
from engine.plan.network.request import NetworkRequest
from engine.plan.swap.plan import plan_swap
from engine.plan.swap.request import SwapRequest
from tests.site.world import World
from webapp.design import network_page, swap_page
from webapp.design.pages import first_values

pytestmark = pytest.mark.django_db
PAGES = {"network": network_page, "swap": swap_page}
ENGINE: dict[str, Any] = {
    "network": lambda document: design(parse(NetworkRequest, document)).as_dict(),
    "swap": lambda document: plan_swap(parse(SwapRequest, document)).as_dict(),
}


@pytest.fixture
def viewer(world: World) -> Client:
    return world.client("viewer")


def first(name: str) -> dict[str, Any]:
    return first_values(PAGES[name].page.form)


def _file(viewer: Client, request: dict[str, Any], table: str) -> str:
    return viewer.get("/network/", {**request, "as": "csv", "table": table}).content.decode()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_the_command_answers_to_its_document(viewer: Client, name: str) -> None:
    document = json.loads(viewer.get(f"/{name}/", {**first(name), "as": "document"}).content)
    page = viewer.get(f"/{name}/", first(name))
    assert page.status_code == 200
    answer = {key: value for key, value in page.context["answer"].items() if key != "heat"}
    assert answer == ENGINE[name](document)
    assert viewer.get(f"/{name}/").context["answer"] == page.context["answer"]


@pytest.mark.parametrize(("name", "key"), [("network", "iterations"), ("swap", "sub-models")])
def test_every_table_is_there_as_csv_in_full(viewer: Client, name: str, key: str) -> None:
    tables = viewer.get(f"/{name}/").context["tables"]
    assert key in {table.name for table in tables}
    for table in tables:
        text = viewer.get(f"/{name}/", {**first(name), "as": "csv", "table": table.name}).content.decode()
        rows = list(csv.reader(io.StringIO(text)))
        assert len(rows) == len(table.rows) + 1
        assert all(len(row) == len(table.columns) for row in rows)
    assert viewer.get(f"/{name}/", {**first(name), "as": "csv", "table": "nothing"}).status_code == 404


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("network", {"gpus": 0}, "gpus"),
        ("network", {"gpus": 10**9}, "gpus"),
        ("network", {"hb_domain": "7"}, "hb_domain"),
        ("network", {"hb_domain": "8, x"}, "hb_domain"),
        ("network", {"hb_domain": ""}, "hb_domain"),
        ("network", {"port_usd": -1}, "port_usd"),
        ("network", {"model": "gpt-9"}, "model"),
        ("network", {"batch": ""}, "batch"),
        ("network", {"experts": 2, "top_k": 3}, "top_k"),
        ("network", {"spare_switches": -1}, "spare_switches"),
        ("network", {"failing_percent": 101, "repair_h": 1}, "failing_percent"),
        ("network", {"failing_percent": 2}, "repair_h"),
        ("swap", {"memory_gib": -1}, "memory_gib"),
        ("swap", {"gpu": "v900"}, "gpu"),
        ("swap", {"mfu": 2}, "mfu"),
        ("swap", {"mbps": "400, fast"}, "mbps"),
        ("swap", {"mbps": "0"}, "mbps"),
        ("swap", {"host_to_device_gb_s": 0}, "host_to_device_gb_s"),
    ],
)
def test_bad_input_stands_at_its_field(viewer: Client, name: str, change: dict[str, Any], field: str) -> None:
    page = viewer.get(f"/{name}/", {**first(name), **change})
    assert page.status_code == 422
    assert field in page.context["form"].errors
    assert not page.context["answer"]


def test_what_does_not_fit_is_said(viewer: Client) -> None:
    page = viewer.get("/swap/", {**first("swap"), "memory_gib": 0.2})
    assert page.status_code == 200
    assert page.context["answer"]["feasible"] is False
    assert page.context["answer"]["reason"] in page.content.decode()
    fabric = viewer.get("/network/", {**first("network"), "model": "", "message_mb": ""})
    assert {table.name for table in fabric.context["tables"] if table.rows} == {"fabrics"}


def test_collectives_run_over_all_gpus_in_every_hb_domain(viewer: Client) -> None:
    page = viewer.get("/network/", {**first("network"), "model": "", "gpus": 512, "hb_domain": "8, 64"})
    (table,) = (table for table in page.context["tables"] if table.name == "collectives")
    assert len(table.rows) == 2 * 4
    assert {row["x"] * row["y"] for row in table.rows} == {512}
    assert all(row["rail_only_s"] > 0 and row["rail_optimised_s"] > 0 for row in table.rows)
    wrong = viewer.get("/network/", {**first("network"), "gpus": 512, "hb_domain": "7"})
    assert "hb_domain" in wrong.context["form"].errors


def test_the_heat_map_adds_up_to_the_table_of_traffic(viewer: Client) -> None:
    request = {**first("network"), "gpus": 2048, "hb_domain": "8"}
    page = viewer.get("/network/", request)
    assert "Traffic between GPUs" in page.content.decode()
    rows = list(csv.DictReader(io.StringIO(_file(viewer, request, "heat"))))
    traffic = list(csv.DictReader(io.StringIO(_file(viewer, request, "traffic"))))
    sent = sum(float(row["Bytes"]) for row in rows)
    assert sent == pytest.approx(1e12 * sum(float(row["Bytes TB"]) for row in traffic), rel=1e-9)
    assert len(page.context["matrix"].rows) == 16
    assert viewer.get("/network/", {**request, "model": ""}).context["matrix"] is None


def test_a_sweep_is_the_answers_to_its_values(viewer: Client) -> None:
    request = {**first("network"), "gpus": 512, "hb_domain": "8, 64", "model": "gpt-22b"}
    page = viewer.get("/network/", {**request, "sweep": "nic_gb_s", "values": "100, 25"})
    rows = page.context["answer"]["swept"]["rows"]
    assert [(row["value"], row["hb_domain"]) for row in rows] == [(25, 8), (25, 64), (100, 8), (100, 64)]
    for value in (25, 100):
        alone = viewer.get("/network/", {**request, "nic_gb_s": value}).context["answer"]["iterations"]
        seconds = [row["iteration_s"] for row in rows if row["value"] == value]
        assert seconds == [row["iteration_s"] for row in alone]
    drawn = page.context["charts"]["lines"]
    assert [line["name"] for line in drawn["lines"]] == ["HB 8", "HB 64"]
    file = _file(viewer, {**request, "sweep": "nic_gb_s", "values": "100, 25"}, "sweep")
    assert len(list(csv.DictReader(io.StringIO(file)))) == 4
    document = viewer.get("/network/", {**request, "sweep": "batch", "values": "64", "as": "document"})
    parse(NetworkRequest, document.json())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sweep": "batch"}, "values"),
        ({"values": "1, 2"}, "sweep"),
        ({"sweep": "nic_gb_s", "values": "0"}, "values"),
        ({"sweep": "batch", "values": "1.5"}, "values"),
        ({"sweep": "batch", "values": "nan"}, "values"),
        ({"sweep": "batch", "values": "1,2,3,4,5,6,7"}, "values"),
        ({"sweep": "gpus", "values": "8"}, "sweep"),
        ({"sweep": "batch", "values": "64", "model": ""}, "sweep"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_at_its_field(viewer: Client, change: Any, field: str) -> None:
    page = viewer.get("/network/", {**first("network"), **change})
    assert page.status_code == 422
    assert field in page.context["form"].errors


def test_spare_switches_and_failing_transceivers_have_their_rows(viewer: Client) -> None:
    bare = {**first("network"), "model": "", "gpus": 1024, "hb_domain": "8"}
    request = {**bare, "spare_switches": 4, "failing_percent": 2, "repair_h": 3, "gpu_usd_per_h": 2}
    fabrics = list(csv.reader(io.StringIO(_file(viewer, request, "fabrics"))))
    assert [row[1] for row in fabrics[1:]] == ["rail-optimised", "rail-only", "rail-only, 4 spare"]
    switches = fabrics[0].index("Switches")
    assert int(fabrics[3][switches]) == int(fabrics[2][switches]) + 4
    (_, *outages) = csv.reader(io.StringIO(_file(viewer, request, "outages")))
    assert [float(row[4]) for row in outages] == [pytest.approx(0.02 * 2 * 1024 * 3)] * 2
    assert "outages" not in {table.name for table in viewer.get("/network/", bare).context["tables"]}
