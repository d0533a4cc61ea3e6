"""What-ifs of a plan: what each change leaves of the document, and the answers of the command."""

import copy
import json
from typing import Any

import pytest
from click.testing import CliRunner

from engine.cli import cli
from engine.inputs import parse
from engine.plan.answer import WHAT_IF_S, plan
from engine.plan.request import PlanRequest
from engine.plan.what_if import (
    changes,
    difference,
    figures,
    follows_links,
    no_option,
    transfer_to_forward,
    with_change,
)

TIMES: dict[str, Any] = {
    "partitions": 4,
    "microbatches": 6,
    "forward_ms": 10.0,
    "backward_ms": 20.0,
    "recompute_ms": 10.0,
    "comm_to_compute": 2.5,
    "activation_bytes": 5e6,
}
DOCUMENT: dict[str, Any] = {
    "datacenters": [
        {"name": "a", "gpus": 8, "gpu_type": "a100-80g", "price_per_gpu_hour": 2.0},
        {"name": "b", "gpus": 6, "gpu_type": "a100-80g", "price_per_gpu_hour": 3.0},
        {"name": "c", "gpus": 5, "gpu_type": "a100-80g", "price_per_gpu_hour": 0.0},
        {"name": "empty", "gpus": 0, "gpu_type": "a100-80g", "price_per_gpu_hour": 1.0},
    ],
    "links": [
        {"between": ["a", "b"], "latency_ms": 10.0, "bandwidth_gbps": 5.0},
        {"between": ["b", "c"], "latency_ms": 30.0, "bandwidth_gbps": 2.0},
        {"between": ["c", "b"], "latency_ms": 30.0, "bandwidth_gbps": 4.0},
    ],
    "job": TIMES,
    "allreduce": False,
}
MODELLED = {**DOCUMENT, "job": {"model": "gpt-a", "partitions": 4, "microbatches": 6, "mfu": 0.5}}
FOLLOWING = {
    **DOCUMENT,
    "job": {**TIMES, "comm_to_compute": transfer_to_forward(TIMES, DOCUMENT["links"])},
}


def answer(document: dict[str, Any]) -> dict[str, Any]:
    return plan(parse(PlanRequest, document), budget_s=WHAT_IF_S).as_dict()


def without(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The document of who never had the data centre."""
    return document | {
        "datacenters": [dc for dc in document["datacenters"] if dc["name"] != name],
        "links": [link for link in document["links"] if name not in link["between"]],
    }


def test_every_data_centre_link_and_price_is_asked_about_once() -> None:
    assert list(map(str, changes(DOCUMENT))) == [
        "without a",
        "without b",
        "without c",
        "a – b at half the bandwidth",
        "b – c at half the bandwidth",
        "a at twice the price",
        "b at twice the price",
    ]
    assert list(changes({**DOCUMENT, "datacenters": DOCUMENT["datacenters"][:1], "links": None})) == [
        change for change in changes(DOCUMENT) if change.name == "a"
    ]


@pytest.mark.parametrize("method", ["algorithm1", "search"])
@pytest.mark.parametrize("document", [DOCUMENT, MODELLED], ids=["times", "model"])
def test_a_lost_data_centre_is_one_that_was_never_there(document: dict[str, Any], method: str) -> None:
    document = {**document, "method": method}
    before = copy.deepcopy(document)
    lost = [change for change in changes(document) if change.kind == "lose"]
    for change in lost:
        changed = answer(with_change(document, change))
        never = answer(without(document, change.name))
        assert figures(changed) == figures(never)
        assert [option["iteration_ms"] for option in changed["options"]] == [
            option["iteration_ms"] for option in never["options"]
        ]
    assert document == before


def test_the_slowest_link_sets_c_as_long_as_it_is_there() -> None:
    assert follows_links(FOLLOWING)
    assert not follows_links(DOCUMENT)
    assert FOLLOWING["job"]["comm_to_compute"] == 2.0  # 5 MB at 2 Gbit/s are 20 ms, a forward is 10
    by_name = {str(change): with_change(FOLLOWING, change) for change in changes(FOLLOWING)}
    rates = {"without a": 2.0, "without b": None, "without c": 5.0, "a – b at half the bandwidth": 2.0}
    rates |= {"b – c at half the bandwidth": 1.0, "a at twice the price": 2.0}
    for name, gbps in rates.items():
        expected = 0.0 if gbps is None else 5e6 * 8 / (gbps * 1e9) / 0.010
        assert by_name[name]["job"]["comm_to_compute"] == pytest.approx(expected)
    halved = by_name["b – c at half the bandwidth"]["links"]
    assert [link["bandwidth_gbps"] for link in halved] == [5.0, 1.0, 2.0]


def test_a_price_changes_costs_alone() -> None:
    document = {**DOCUMENT, "allowed": ["a"], "job": {**TIMES, "partitions": 2}}
    double = next(change for change in changes(document) if str(change) == "a at twice the price")
    was, now = figures(answer(document)), figures(answer(with_change(document, double)))
    for name in ("cost_per_iteration", "cost_per_day"):
        assert difference(now[name], was[name]) == pytest.approx(100)
    assert (now["iteration_ms"], now["gpus"]) == (was["iteration_ms"], was["gpus"])
    # A day of it costs what its GPUs cost in 24 hours.
    assert was["cost_per_day"] == pytest.approx(was["gpus"] * 2.0 * 24)


def test_the_sentence_tells_a_model_that_does_not_fit_from_a_limit() -> None:
    small = {**DOCUMENT, "job": {**TIMES, "partitions": 12}}
    lost = with_change(small, next(iter(changes(small))))
    assert no_option({"a"}, answer(lost)).startswith("without a no plan holds the model: ")
    limited = answer({**DOCUMENT, "budget_per_iteration": 1e-9, "allowed": ["a"]})
    assert no_option(set(), limited).startswith("no option is within the limits: ")
    assert figures(limited) == dict.fromkeys(figures(limited))
    assert difference(None, 3.0) is None
    assert difference(2.0, 0.0) is None


def test_the_command_answers_each_change_as_a_plan_of_its_own() -> None:
    document = {**DOCUMENT, "job": {**TIMES, "partitions": 12}}
    call = ["plan", "-", "--what-if"]
    printed = CliRunner().invoke(cli, [*call, "--json"], input=json.dumps(document), standalone_mode=False)
    rows = json.loads(printed.stdout)["what_if"]
    assert rows[0]["change"] == "as planned"
    assert [row["change"] for row in rows[1:]] == list(map(str, changes(document)))
    for row, change in zip(rows[1:], changes(document), strict=True):
        expected = figures(answer(with_change(document, change)))
        assert {name: row[name] for name in expected} == expected
        assert row["feasible"] == (row["reason"] is None)
    assert any(not row["feasible"] for row in rows)
    table = CliRunner().invoke(cli, call, input=json.dumps(document), standalone_mode=False).stdout
    assert "no plan holds the model" in table
    plain = CliRunner().invoke(cli, ["plan", "-", "--json"], input=json.dumps(document)).stdout
    assert "what_if" not in json.loads(plain)
