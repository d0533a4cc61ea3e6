"""`meridian network` from outside: bad input by field, exit codes, JSON that is JSON, tables, the matrix."""

import copy
import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cli import main
from engine.inputs import parse
from engine.plan.network.design import design
from engine.plan.network.request import NetworkRequest
from engine.reproduce.rail_only import EXPERIMENTS
from engine.reproduce.rail_only_sweeps import HB_GBPS, NIC_GBPS, at, mean_gains, of_ideal

GPT: dict[str, Any] = {"layers": 24, "hidden": 2048, "heads": 16, "seq": 2048, "vocab": 51_200}
GOOD: dict[str, Any] = {
    "gpus": 64,
    "hb_domain": [8, 16],
    "switch_radix": 16,
    "gpu_type": "a100-80g",
    "model": GPT,
    "batch": 64,
    "collectives": [
        {"op": "allgather", "bytes": 1e9, "x": 8, "y": 8},
        {"op": "all_to_all", "bytes": 1e6, "x": 8, "y": 8},
    ],
}


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["meridian", *args])
    with pytest.raises(SystemExit) as exit_:
        main()
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(document: Any, *args: str) -> tuple[int, str, str]:
        file = tmp_path / "network.json"
        file.write_text(json.dumps(document))
        return run(monkeypatch, capsys, "network", str(file), *args)

    return call


def changed(**changes: Any) -> dict[str, Any]:
    """GOOD with fields set, or gone where ``...``."""
    document = {**copy.deepcopy(GOOD), **changes}
    return {name: value for name, value in document.items() if value is not ...}


def without_model(**changes: Any) -> dict[str, Any]:
    return changed(model=..., batch=..., collectives=..., gpu_type=..., **changes)


MEASURED: dict[str, Any] = {"tp": 8, "micro_batch": 2, "forward_ms": 5, "backward_ms": 11, "recompute_ms": 1}
NAN = float("nan")
BAD: list[tuple[dict[str, Any], str, str]] = [
    (changed(gpus=10**9), "gpus", "less than or equal to 10000000"),
    (changed(spare_switches=-1), "spare_switches", "greater than or equal to 0"),
    (changed(transceiver_failures={"repair_h": 1}), "transceiver_failures.per_year", "required"),
    (
        changed(transceiver_failures={"per_year": 2, "repair_h": 1}),
        "transceiver_failures.per_year",
        "less than or equal to 1",
    ),
    (changed(gpus=0), "gpus", "greater than or equal to 1"),
    (changed(gpus=8.5), "gpus", "integer"),
    (changed(gpus=...), "gpus", "required"),
    (changed(hb_domain=7), "hb_domain", "must divide gpus = 64"),
    (changed(hb_domain=[8, 7]), "hb_domain[1]", "must divide gpus = 64"),
    (changed(hb_domain=[8, 16, 8]), "hb_domain[2]", "listed twice"),
    (changed(hb_domain=128), "hb_domain", "must divide gpus = 64"),
    (changed(hb_domain=[]), "hb_domain", "at least 1"),
    (changed(hb_domain=0), "hb_domain", "greater than or equal to 1"),
    (changed(hb_domain="8"), "hb_domain", "integer"),
    (changed(switch_radix=...), "switch_radix", "required"),
    (changed(switch_radix=1), "switch_radix", "greater than or equal to 2"),
    (changed(switch_radix=3), "switch_radix", "at least 4 ports"),
    (changed(gpu_type="a100-80gb"), "gpu_type", "did you mean 'a100-80g'?"),
    (changed(gpu_type={"peak_tflops": 312, "memory_gb": 80}), "gpu_type.hbm_gb_s", "required"),
    (changed(gpu_type={"peak_tflops": 312, "memory_gb": 80, "hbm_gb_s": 2e3}), "hb_gb_s", "required"),
    (changed(gpu_type="t4"), "nic_gb_s", "required"),
    (changed(gpu_type=..., hb_gb_s=300, nic_gb_s=25), "gpu_type", "required with a model"),
    (changed(hb_gb_s=0), "hb_gb_s", "greater than"),
    (changed(nic_gb_s=-25), "nic_gb_s", "greater than"),
    (changed(nic_gb_s=NAN), "nic_gb_s", "finite"),
    (changed(nic_gb_s=True), "nic_gb_s", "not true or false"),
    (changed(model="gpt-z"), "model", "did you mean"),
    (changed(model="gpt-a"), "pp", "one layer per stage"),
    (changed(model={**GPT, "heads": 3}), "model.heads", "must divide hidden"),
    (changed(model={**GPT, "layer": 3}), "model.layer", "did you mean 'layers'?"),
    (changed(model={**GPT, "moe": {"experts": 2, "top_k": 3}}), "model.moe.top_k", "at most experts = 2"),
    (changed(model={**GPT, "moe": {"experts": 0}}), "model.moe.experts", "greater than or equal to 1"),
    (changed(moe={"experts": 4}, model={**GPT, "moe": {"experts": 4}}), "moe", "only one of them"),
    (without_model(moe={"experts": 4}), "moe", "give model too"),
    (changed(batch=...), "batch", "required with a model"),
    (changed(batch=0), "batch", "greater than or equal to 1"),
    (changed(tp=3), "tp", "must divide the model's heads = 16"),
    (changed(pp=25), "pp", "the model has 24"),
    (changed(dp=48), "dp", "must divide batch = 64"),
    (changed(micro_batch=3), "micro_batch", "must divide batch = 64"),
    (changed(dp=64, micro_batch=2), "micro_batch", "dp × micro_batch"),
    (changed(tp=16, pp=8), "gpus", "tp × pp = 128"),
    (changed(model={**GPT, "layers": 10**6}), "model.layers", "at most 10000"),
    (
        changed(model={**GPT, "layers": 10_000}, batch=720_720, micro_batch=None, leave_idle=True),
        "pp",
        "strategies to try",
    ),
    (changed(recompute="some"), "recompute", "'full', 'selective' or 'none'"),
    (changed(efficiency={"gemm": 1.2}), "efficiency.gemm", "less than or equal to 1"),
    (changed(efficiency={"hb": 0}), "efficiency.hb", "greater than"),
    (changed(efficiency={"hbn": 0.5}), "efficiency.hbn", "did you mean 'hb"),
    (changed(prices={"port_usd": -1}), "prices.port_usd", "greater than or equal to 0"),
    (changed(prices={"transceiver_w": NAN}), "prices.transceiver_w", "finite"),
    (changed(collectives=[{"op": "gather", "bytes": 1, "x": 1, "y": 1}]), "collectives[0].op", "'allgather'"),
    (changed(collectives=[{"op": "allreduce", "bytes": -1, "x": 1, "y": 1}]), "collectives[0].bytes", "0"),
    (changed(collectives=[{"op": "allreduce", "bytes": 1, "x": 32, "y": 1}]), "collectives[0].x", "16"),
    (
        changed(collectives=[{"op": "allreduce", "bytes": 1, "x": 8, "y": 9}]),
        "collectives[0].y",
        "x × y = 72",
    ),
    (changed(measured=MEASURED, tp=4), "tp", "measured.tp is 8"),
    (changed(measured={**MEASURED, "tp": 3}), "tp", "must divide the model's heads"),
    (changed(measured={**MEASURED, "forward_ms": 0}), "measured.forward_ms", "greater than 0"),
    (changed(measured=MEASURED, model={**GPT, "moe": {"experts": 4}}), "measured", "dense"),
    (without_model(tp=8), "tp", "give model too"),
    (without_model(collectives_=[]), "collectives_", "did you mean 'collectives'?"),
    (changed(swich_radix=64), "swich_radix", "did you mean 'switch_radix'?"),
]


@pytest.mark.parametrize(("document", "field", "allowed"), BAD)
def test_bad_input_is_one_line_that_names_the_field(
    document: dict[str, Any], field: str, allowed: str, network
) -> None:
    status, out, err = network(document)
    assert (status, out) == (2, ""), err
    assert err.count("\n") == 1
    assert err.startswith(f"meridian: {field}: ")
    assert allowed in err


def finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(finite(each) for each in value.values())
    if isinstance(value, list):
        return all(finite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)


def test_the_answer_has_what_the_contract_names(network) -> None:
    status, out, err = network(GOOD, "--json")
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert finite(answer)
    assert {"collectives", "iterations", "fabric", "traffic"} <= set(answer)
    gather, tokens = answer["collectives"]
    assert set(gather) == {"op", "bytes", "x", "y", "rail_only_s", "rail_optimised_s"}
    assert gather["rail_only_s"] == pytest.approx(7 / 64 / 25 + 7 / 8 / 300)  # nominal rates
    assert tokens["rail_only_s"] - tokens["rail_optimised_s"] == pytest.approx(56e6 / 300e9)
    small, large = answer["iterations"]
    assert (small["hb_domain"], large["hb_domain"]) == (8, 16)
    for row in (small, large):
        assert row["feasible"]
        assert row["tp"] * row["pp"] * row["dp"] == 64
        assert set(row["parts_s"]) == {"compute", "tp", "pp", "dp", "ep", "bubble"}
        assert sum(row["parts_s"].values()) == pytest.approx(row["iteration_s"])
        assert 0 < row["mfu"] <= row["hfu"] < 1
        assert row["iteration_s"] >= row["ideal_s"]
    assert large["iteration_s"] <= small["iteration_s"]
    fabric = answer["fabric"]
    assert fabric["rail_only"]["cost_usd"] < fabric["rail_optimised"]["cost_usd"]
    assert fabric["cost_saving"] == 1 - fabric["rail_only"]["cost_usd"] / fabric["rail_optimised"]["cost_usd"]
    assert set(answer["traffic"]["bytes"]) == {"tp", "dp_hb", "dp_nic", "pp", "ep"}
    assert {"tp", "dp", "pp", "none"} <= set(answer["traffic"]["pairs"])
    assert {row["case"] for row in answer["failures"]} >= {
        "link",
        "rail switch",
        "platform",
        "GPU, domain full",
    }


def test_without_a_model_only_fabric_and_collectives(network) -> None:
    status, out, _ = network(without_model(), "--json")
    assert status == 0
    answer = json.loads(out)
    assert answer["iterations"] == answer["collectives"] == answer["failures"] == []
    assert answer["traffic"] is None
    assert answer["fabric"]["rail_only"]["tiers"] == 1
    free = without_model(prices={"port_usd": 0, "transceiver_usd": 0, "port_w": 0, "transceiver_w": 0})
    status, out, _ = network(free, "--json")
    assert status == 0
    assert json.loads(out)["fabric"]["cost_saving"] is None  # a price of zero is allowed
    status, out, _ = network(without_model(gpus=1, hb_domain=1))
    assert status == 0


def test_what_does_not_fit_is_a_row_with_its_reason(network) -> None:
    tiny = {"peak_tflops": 312, "memory_gb": 0.1, "hbm_gb_s": 2000}
    document = changed(gpu_type=tiny, hb_gb_s=300, nic_gb_s=25)
    status, out, _ = network(document, "--json")
    assert status == 0
    answer = json.loads(out)
    assert [row["feasible"] for row in answer["iterations"]] == [False, False]
    assert answer["iterations"][0]["reason"].startswith("memory: at least")
    assert answer["iterations"][0]["iteration_s"] is None
    assert answer["traffic"] is None
    status, out, _ = network(document)
    assert status == 0
    assert "HB domain 8: infeasible: memory" in out


def test_fixed_degrees_are_kept_and_idle_gpus_are_told(network) -> None:
    status, out, _ = network(changed(tp=8, pp=4, dp=1, interleave=2, hb_domain=8), "--json")
    row = json.loads(out)["iterations"][0]
    assert (status, row["tp"], row["pp"], row["dp"], row["interleave"]) == (0, 8, 4, 1, 2)
    assert row["gpus_used"] == 32


def test_measured_times_override_the_model(network) -> None:
    status, out, _ = network(
        changed(measured=MEASURED, model={**GPT, "vocab": 0}, pp=2, interleave=1), "--json"
    )
    row = json.loads(out)["iterations"][0]
    assert (status, row["tp"], row["micro_batch"], row["dp"]) == (0, 8, 2, 4)
    optimizer_s = row["parts_s"]["compute"] - 8 * 12 * 17e-3  # 8 microbatches, 12 blocks
    assert 0 < optimizer_s < 0.01


def test_the_matrix_sums_to_the_traffic(network, tmp_path: Path) -> None:
    path = tmp_path / "matrix.csv"
    moe = changed(moe={"experts": 16, "top_k": 2, "every": 2})
    status, out, _ = network(moe, "--json", "--matrix", str(path))
    assert status == 0
    traffic = json.loads(out)["traffic"]
    rows = list(csv.DictReader(path.open()))
    assert set(rows[0]) == {"from", "to", "kind", "bytes"}
    by_kind = {
        kind: sum(float(r["bytes"]) for r in rows if r["kind"] == kind) for kind in ("tp", "dp", "pp", "ep")
    }
    bytes_ = traffic["bytes"]
    assert by_kind["ep"] == pytest.approx(bytes_["ep"])
    assert bytes_["ep"] > 0
    assert by_kind["dp"] == pytest.approx(bytes_["dp_hb"] + bytes_["dp_nic"])
    assert by_kind["tp"] == pytest.approx(bytes_["tp"])
    assert by_kind["pp"] == pytest.approx(bytes_["pp"])
    assert len({(r["from"], r["to"]) for r in rows}) == sum(
        count for kind, count in traffic["pair_counts"].items() if kind != "none"
    )


def test_a_matrix_needs_a_model_and_a_place(network, tmp_path: Path) -> None:
    status, _, err = network(without_model(), "--matrix", str(tmp_path / "m.csv"))
    assert (status, err.startswith("meridian: --matrix: ")) == (2, True)
    status, _, err = network(GOOD, "--matrix", str(tmp_path / "none" / "m.csv"))
    assert (status, "cannot be written" in err) == (2, True)


def test_the_tables_can_be_read(network) -> None:
    status, out, _ = network(GOOD)
    assert status == 0
    for words in ("all_to_all", "rail-optimised", "traffic of one iteration", "after a failure", "MFU"):
        assert words in out
    assert all(len(line) <= 220 for line in out.splitlines())


def test_eight_million_gpus_are_answered(network) -> None:
    document = changed(gpus=2**23, hb_domain=256, batch=2**16, switch_radix=64, collectives=...)
    status, out, _ = network(document, "--json")
    assert status == 0
    assert json.loads(out)["iterations"][0]["gpus_used"] == 2**23


rates = st.sampled_from([1e-6, 1.0, 300.0, 1e12])


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Small and absurd clusters and models; some are infeasible, none is bad input."""
    k = draw(st.sampled_from([1, 2, 3, 8]))
    heads = draw(st.sampled_from([1, 6, 16, 4096]))
    batch = draw(st.sampled_from([1, 12, 1000, 10_000_000]))
    moe = {"experts": draw(st.sampled_from([1, 4, 1_000_000])), "every": draw(st.sampled_from([1, 3]))}
    return {
        "gpus": k * draw(st.sampled_from([1, 2, 5, 64, 100_000])),
        "hb_domain": k,
        "switch_radix": draw(st.sampled_from([4, 5, 64, 99_999])),
        "gpu_type": {
            "peak_tflops": draw(rates),
            "hbm_gb_s": draw(rates),
            "memory_gb": draw(st.sampled_from([1.0, 80.0, 1e12])),
        },
        "hb_gb_s": draw(rates),
        "nic_gb_s": draw(rates),
        "model": {
            "layers": draw(st.sampled_from([1, 7, 100])),
            "heads": heads,
            "hidden": heads * draw(st.sampled_from([1, 64, 240])),
            "seq": draw(st.sampled_from([1, 2048, 10**8])),
            "vocab": draw(st.sampled_from([0, 50_257, 10**8])),
            "ffn": draw(st.sampled_from([1, 4096, 10_000_000])),
            "family": draw(st.sampled_from(["gpt", "llama"])),
        },
        "moe": draw(st.sampled_from([None, moe])),
        "batch": batch,
        "recompute": draw(st.sampled_from(["full", "selective", "none"])),
        "leave_idle": draw(st.booleans()),
    }


@settings(max_examples=25)
@given(documents())
def test_whatever_is_asked_the_answer_is_finite(document: dict[str, Any]) -> None:
    answer = design(parse(NetworkRequest, document)).as_dict()
    assert finite(answer)
    json.dumps(answer, allow_nan=False)
    for row in answer["iterations"]:
        assert row["feasible"] or row["reason"]
        if row["feasible"]:
            assert row["iteration_s"] > 0
            assert row["gpus_used"] <= document["gpus"]
            assert min(row["parts_s"].values()) >= 0
            assert 0 < row["mfu"] <= row["hfu"] <= 1
            assert row["memory_gb_per_gpu"] <= document["gpu_type"]["memory_gb"]
    if answer["traffic"]:
        assert min(answer["traffic"]["pairs"].values()) >= 0
        assert sum(answer["traffic"]["pairs"].values()) == pytest.approx(1 if document["gpus"] > 1 else 0)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_published_figures(experiment) -> None:
    rows = experiment.run().rows
    assert rows
    assert [row.name for row in rows if row.ok is False] == []
    assert all(math.isfinite(row.ours) for row in rows)


def test_orderings_of_figure_9() -> None:
    """HB bandwidth gains more in large domains, NIC bandwidth in small ones; more of it is never slower."""
    small, large = mean_gains(8), mean_gains(256)
    assert large[0] > small[0]
    assert small[1] > large[1]
    for size in (8, 256):
        for hb in HB_GBPS:
            times = [at(size, hb, nic) for nic in NIC_GBPS]
            assert times == sorted(times, reverse=True)


def test_orderings_of_figure_10() -> None:
    """A larger batch comes closer to the ideal, and so does a larger domain."""
    small, large = of_ideal(8), of_ideal(256)
    assert small[-1] > small[0]
    assert large[-1] > large[0]
    assert all(a <= b for a, b in zip(small, large, strict=True))


def test_spare_switches_and_failing_transceivers_are_counted_where_asked_for(network: Any) -> None:
    request = {"spare_switches": 4, "transceiver_failures": {"per_year": 0.01, "repair_h": 4}}
    code, text, _ = network(changed(**request, collectives=...), "--json")
    assert code == 0
    answer = json.loads(text)
    plain = json.loads(network(changed(collectives=...), "--json")[1])
    for pair, without in zip(answer["fabrics"], plain["fabrics"], strict=True):
        spares, failing = pair.pop("spares"), pair.pop("outages")
        assert pair == without
        assert spares["rail_only"]["switches"] == pair["rail_only"]["switches"] + 4
        assert spares["cost_saving"] < pair["cost_saving"]
        for fabric in ("rail_only", "rail_optimised"):
            assert failing[fabric]["failures"] == pytest.approx(0.01 * pair[fabric]["transceivers"])
            assert failing[fabric]["gpu_hours_lost"] == pytest.approx(0.01 * 2 * 64 * 4)
    spared = [row for row in answer["failures"] if row["case"] == "rail switch, spare one"]
    assert [(row["gpus_lost"], row["slowdown"], row["spared_slowdown"]) for row in spared] == [(0, 1, 1)]
    assert [row for row in answer["failures"] if row not in spared] == plain["failures"]
    lines = network(changed(**request))[1]
    assert "rail-only, 4 spare" in lines
    assert "transceivers that fail" in lines
