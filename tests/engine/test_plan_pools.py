"""Data centres with GPUs of several types: planned as the same pools written out."""

from typing import Any

import pytest

from engine.errors import InputError
from engine.inputs import parse
from engine.plan import pools as pools_of_plans
from engine.plan.answer import plan
from engine.plan.request import PlanRequest

MODEL = {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 51200, "seq": 2048}
JOB = {"model": MODEL, "partitions": 8, "microbatches": 8, "layers_per_stage": "balanced"}
FAST = {"gpus": 4, "gpu_type": "a100-80g", "price_per_gpu_hour": 2.0}
SLOW = {"gpus": 4, "gpu_type": "v100", "price_per_gpu_hour": 1.0}
WAN = {"latency_ms": 5, "bandwidth_gbps": 10, "egress_price_per_gb": 0.02}
WEST = {"name": "west", **FAST}


def mixed(**changes: Any) -> dict[str, Any]:
    east = {"name": "east", "intra_gbps": 50, "pools": [FAST, SLOW]}
    links = [{"between": ["west", "east"], **WAN}]
    return {"datacenters": [east, WEST], "links": links, "job": JOB, "method": "search", **changes}


def test_pools_are_planned_as_data_centres_on_the_network_that_they_share() -> None:
    written_out = {
        **mixed(),
        "datacenters": [
            {"name": "east:a100-80g", "intra_gbps": 50, **FAST},
            {"name": "east:v100", "intra_gbps": 50, **SLOW},
            WEST,
        ],
        "links": [
            {"between": ["west", "east:a100-80g"], **WAN},
            {"between": ["west", "east:v100"], **WAN},
            {"between": ["east:a100-80g", "east:v100"], "latency_ms": 0.0, "bandwidth_gbps": 50},
        ],
    }
    assert parse(PlanRequest, mixed()) == parse(PlanRequest, written_out)


def test_links_are_not_multiplied_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools_of_plans, "MOST_LINKS", 1)
    assert len(parse(PlanRequest, mixed()).links) == 3
    monkeypatch.setattr(pools_of_plans, "MOST_LINKS", 0)
    with pytest.raises(InputError, match=r"^links: '1 links': with the pools of their ends"):
        parse(PlanRequest, mixed())


def test_a_pipeline_goes_through_the_types_of_one_data_centre_each_with_its_layers() -> None:
    answer = plan(parse(PlanRequest, mixed(allowed=["east"], order=["west", "east"])))
    best = answer.options[answer.best]  # type: ignore[index]
    assert best.gpus_used == {"east:a100-80g": 4, "east:v100": 4}
    assert best.egress_gb is not None
    assert best.layers_per_stage is not None
    layers = dict(
        zip(
            (part.dc for part in best.partitions),
            (best.layers_per_stage[:4], best.layers_per_stage[4:]),
            strict=True,
        )
    )
    assert sum(layers["east:a100-80g"]) > sum(layers["east:v100"])
    one = plan(
        parse(PlanRequest, {"datacenters": [{"name": "east", "pools": [{**FAST, "gpus": 8}]}], "job": JOB})
    )
    assert one.options[0].gpus_used == {"east": 8}


@pytest.mark.parametrize(
    ("pools", "more", "message"),
    [
        ([], {}, "datacenters[0].pools: []: must be a list of 1 to 16"),
        ([FAST], {"gpus": 3}, "datacenters[0].gpus: 3: write it in each of the pools"),
        ([FAST, {**SLOW, "gpus": -1}], {}, "datacenters[0].pools[1].gpus: -1"),
        (
            [FAST, {**SLOW, "gpu_type": "v1000"}],
            {},
            "datacenters[0].pools[1].gpu_type: 'v1000': unknown GPU type",
        ),
        (
            [FAST, {**SLOW, "intra_gbps": 3}],
            {},
            "datacenters[0].pools[1].intra_gbps: 3: unknown field of a pool",
        ),
        ([FAST, FAST], {}, "datacenters[0].pools[1].gpu_type: 'a100-80g': another pool has this type"),
        ([FAST, SLOW], {"name": 3}, "datacenters[0].pools[0].name: 3"),
    ],
)
def test_bad_pools_are_refused_by_name(pools: list[Any], more: dict[str, Any], message: str) -> None:
    east = {"name": "east", "pools": pools, **more}
    with pytest.raises(InputError) as error:
        parse(PlanRequest, mixed(datacenters=[east, WEST]))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([{"between": ["west", "north"], **WAN}], "links[0].between[1]: 'north': unknown data centre"),
        ([{"between": ["west", "east"], **WAN}] * 2, "links[1].between"),
        ([{"between": "west", **WAN}], "links[0].between"),
        ([3], "links[0]: 3"),
    ],
)
def test_a_link_of_a_document_with_pools_is_named_as_it_was_written(links: list[Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        parse(PlanRequest, mixed(links=links))
    assert message in str(error.value)
