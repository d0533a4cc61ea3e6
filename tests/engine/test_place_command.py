"""`meridian place`: the contract's fields, errors that name the field, and the reproduced experiments."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from engine.commands.place import command
from engine.errors import InputError
from engine.inputs import parse
from engine.plan.placement.request import MOST_DEVICES, PlacementRequest
from engine.reproduce import dtfm_times as dtfm
from engine.reproduce import experiments as all_experiments
from engine.reproduce.dtfm import multiples_of_ours

CONTRACT = (
    "groups",
    "pipelines",
    "dp_cost_s",
    "pp_cost_s",
    "cost_s",
    "exact_order",
    "stopped_by",
    "history",
    "symmetrised",
    "evaluations",
    "seed",
)


def document(devices: int = 6, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(devices)
    return {
        "latency_ms": rng.uniform(1, 200, (devices, devices)).tolist(),
        "bandwidth_gbps": rng.uniform(0.3, 10, (devices, devices)).tolist(),
        "stages": 3,
        "data_parallel": devices // 3,
        "dp_bytes": 3e8,
        "pp_bytes": 1e9,
        **changes,
    }


def run(data: dict[str, Any], *options: str) -> Any:
    return CliRunner().invoke(command, ["-", *options], input=json.dumps(data), catch_exceptions=False)


def test_the_fields_of_the_contract() -> None:
    answer = json.loads(run(document(), "--json").stdout)
    assert set(CONTRACT) <= set(answer)
    assert len(answer["groups"]) == 3
    assert len(answer["pipelines"]) == 2
    assert answer["symmetrised"] is True
    assert answer["exact_order"] is True
    assert set(answer["history"][0]) == {"evaluations", "cost_s"}
    for pipeline in answer["pipelines"]:
        assert all(device in answer["groups"][stage] for stage, device in enumerate(pipeline))


def test_asymmetric_links_count_as_their_mean() -> None:
    """Eqs. 2 and 3 by hand: two stages of one device, 10 and 30 ms, 1 and 3 Gbps."""
    data = document(
        latency_ms=[[None, 10], [30, "x"]], bandwidth_gbps=[[0, 1], [3, 0]], stages=2, data_parallel=1
    )
    answer = json.loads(run(data, "--json").stdout)
    assert answer["pp_cost_s"] == pytest.approx(2 * (0.020 + 8e9 / 2e9))
    assert answer["dp_cost_s"] == 0
    symmetric = json.loads(
        run({**data, "latency_ms": [[0, 20], [20, 0]], "bandwidth_gbps": [[0, 2], [2, 0]]}, "--json").stdout
    )
    assert symmetric["symmetrised"] is False
    assert symmetric["cost_s"] == answer["cost_s"]


def test_data_parallel_cost_by_hand() -> None:
    """One stage of three devices: the middle one exchanges with both others, 2·(α + c/(3β)) each."""
    data = document(
        latency_ms=[[0, 1, 2], [1, 0, 4], [2, 4, 0]],
        bandwidth_gbps=[[0, 8, 4], [8, 0, 2], [4, 2, 0]],
        stages=1,
        data_parallel=3,
        dp_bytes=6e9,
    )
    answer = json.loads(run(data, "--json").stdout)
    assert answer["cost_s"] == pytest.approx(2 * (0.002 + 2 / 0.5) + 2 * (0.004 + 2 / 0.25))
    assert answer["pp_cost_s"] == 0


def test_the_table_and_the_folder(tmp_path: Path) -> None:
    result = run({"scenario": "spot", "evaluations": 300}, "--out", str(tmp_path))
    assert "64 devices: 8 stages × 8 pipelines" in result.stdout
    assert "communication   7.8104 s an iteration" in result.stdout
    assert json.loads((tmp_path / "result.json").read_text())["evaluations"] <= 300
    assert (tmp_path / "history.csv").read_text().startswith("evaluations,cost_s")


def test_baselines_are_no_better() -> None:
    answer = json.loads(run(document(12), "--json", "--baselines").stdout)
    assert len(answer["baselines"]) == 4
    assert all(one["cost_s"] >= answer["cost_s"] * (1 - 1e-12) for one in answer["baselines"])


def entry(field: str, i: int, j: int, value: Any) -> dict[str, Any]:
    matrix = document()[field]
    matrix[i][j] = value
    return {field: matrix}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (entry("latency_ms", 1, 2, float("nan")), "latency_ms[1][2]"),
        (entry("latency_ms", 1, 2, -1), "latency_ms[1][2]"),
        (entry("latency_ms", 1, 2, True), "latency_ms[1][2]"),
        (entry("latency_ms", 1, 2, "5"), "latency_ms[1][2]"),
        (entry("latency_ms", 1, 2, None), "latency_ms[1][2]"),
        (entry("latency_ms", 1, 2, 10**400), "latency_ms[1][2]"),
        (entry("bandwidth_gbps", 5, 0, 0), "bandwidth_gbps[5][0]"),
        (entry("bandwidth_gbps", 5, 0, -3), "bandwidth_gbps[5][0]"),
        (entry("bandwidth_gbps", 5, 0, float("inf")), "bandwidth_gbps[5][0]"),
        ({"latency_ms": [[0, 1], [1]]}, "latency_ms[1]"),
        ({"latency_ms": [0, 1]}, "latency_ms[0]"),
        ({"latency_ms": []}, "latency_ms"),
        ({"latency_ms": 3}, "latency_ms"),
        ({"bandwidth_gbps": [[1]]}, "bandwidth_gbps"),
        ({"latency_ms": [[0]] * (MOST_DEVICES + 1)}, "latency_ms"),
        ({"data_parallel": 3}, "data_parallel"),
        ({"stages": 0}, "stages"),
        ({"stages": 10**9}, "stages"),
        ({"stages": 2.5}, "stages"),
        ({"dp_bytes": -1}, "dp_bytes"),
        ({"pp_bytes": float("nan")}, "pp_bytes"),
        ({"seed": -1}, "seed"),
        ({"evaluations": 0}, "evaluations"),
        ({"seconds": 0}, "seconds"),
        ({"scenario": "worldwid"}, "scenario"),
        ({"scenario": 5}, "scenario"),
        ({"bandwith_gbps": 1}, "bandwith_gbps"),
    ],
)
def test_bad_input_names_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(PlacementRequest, document(**changes))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_missing_field() -> None:
    data = document()
    del data["bandwidth_gbps"]
    with pytest.raises(InputError, match="bandwidth_gbps: required"):
        parse(PlacementRequest, data)


def test_a_scenario_may_be_changed() -> None:
    request = parse(PlacementRequest, {"scenario": "regional", "stages": 4, "data_parallel": 16})
    assert request.devices == 64
    assert request.stages == 4


def test_nothing_to_send_costs_latency_only() -> None:
    answer = json.loads(run(document(dp_bytes=0, pp_bytes=0), "--json").stdout)
    assert answer["cost_s"] > 0
    free = document(latency_ms=[[0] * 6] * 6, dp_bytes=0, pp_bytes=0)
    assert json.loads(run(free, "--json").stdout)["cost_s"] == 0


def test_the_experiments_are_listed() -> None:
    assert {"dtfm-cost", "dtfm-iteration"} <= set(all_experiments())


def test_an_iteration_by_hand() -> None:
    """Case 1 hides its transfers: GPipe on eight stages takes 3·(M + 7)·F, and then comes Eq. 2."""
    job = dtfm.Job(layers=24, batch=1024)
    case = dtfm.scenarios.case("on-demand")
    pipelines = np.array(dtfm.placed("on-demand", job).pipelines)
    forward = dtfm.forward_s(job, dtfm.Grid(tensor=1, pipeline=8, data=8))
    exchange = dtfm.placed("on-demand", job).dp_cost_s
    through = dtfm.ours_s(case, job, pipelines) - exchange
    assert 3 * (128 + 7) * forward <= through <= 3 * (128 + 7) * forward * 1.05


def test_the_best_grid_is_the_best() -> None:
    """What `best_megatron_s` leaves out by its bound is not faster."""
    job = dtfm.Job(layers=24, batch=64)
    case = dtfm.scenarios.case("worldwide")
    layout = next(iter(dtfm.layouts()))
    every = [dtfm.megatron_s(case, job, grid, layout) for grid in dtfm.GRIDS]
    assert dtfm.best_megatron_s(case, job, layout)[0] == min(every)


def test_a_pipeline_that_waits_for_what_it_sends_by_hand() -> None:
    """Two stages, F = 1, B = 2, three microbatches, transfers of 1.

    The first stage needs 2 for each F with its send: the second has the last at 6 and ends its F at 7. There
    each B with its send needs 3, to 16; the first stage ends its last B at 18.
    """
    hops = ((0.0, 1.0),)
    assert dtfm.pipeline_s("gpipe", 1.0, hops, 3, overlapped=False) == pytest.approx(18)
    assert dtfm.pipeline_s("1f1b", 1.0, hops, 3) <= dtfm.pipeline_s("1f1b", 1.0, hops, 3, overlapped=False)


def test_the_ranking_of_figure_5() -> None:
    """No random placement is cheaper than Kernighan-Lin, nor that cheaper than the paper's search."""
    for name in dtfm.scenarios.names():
        cost = multiples_of_ours(name)
        ranking = [cost[label] for label in ("the paper's search", "Kernighan–Lin", "random, mean of 20")]
        assert ranking[0] >= 1 - 1e-9
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(ranking))
