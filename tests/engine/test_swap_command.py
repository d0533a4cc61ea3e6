"""`meridian swap` from outside: fields of its answer, reasons, bad input by field, exit codes."""

import copy
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from engine.errors import InputError
from engine.inputs import parse
from engine.plan.swap.plan import plan_swap
from engine.plan.swap.request import SwapRequest
from engine.simulate.spans import Span

LAYER = {
    "name": "block",
    "memory_bytes": 100,
    "forward_s": 1,
    "backward_s": 2,
    "load_s": 3,
    "cut_bytes": 5,
    "parameter_bytes": 40,
}
GOOD: dict[str, Any] = {
    "layers": [{**LAYER, "name": f"block {i}"} for i in range(6)],
    "gpu": {"memory_bytes": 400},
    "gradients": "device",
    "compare": {"stages": 3, "microbatches": 2, "links": [{"name": "slow", "mbps": 1e-4}]},
}
# 6 layers of 40 bytes of gradients stay: 160 bytes are left, one layer at a time does not fit twice
GOOD["gpu"]["memory_bytes"] = 6 * 40 + 400


def run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    document: Any,
    *more: str,
) -> tuple[int, str, str]:
    file = tmp_path / "swap.json"
    file.write_text(json.dumps(document))
    monkeypatch.setattr(sys, "argv", ["meridian", "swap", str(file), *more])
    with pytest.raises(SystemExit) as exit_:
        main()
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


def answer(**changes: Any) -> dict[str, Any]:
    document = {**copy.deepcopy(GOOD), **changes}
    return plan_swap(parse(SwapRequest, {k: v for k, v in document.items() if v is not ...})).as_dict()


def test_the_answer_has_the_fields_of_the_contract_and_its_figures_agree() -> None:
    output = answer()
    assert output["feasible"] is True
    assert output["reason"] is None
    # 400 bytes for two: two layers each; forward 2·C ≥ 6, backward 4·C ≥ 6: C = 3
    assert [(sub["first"], sub["last"]) for sub in output["sub_models"]] == [(0, 1), (2, 3), (4, 5)]
    assert output["accumulation"] == 3
    assert output["loads_per_step"] == 4
    assert output["step_s"] == pytest.approx(3 * 18)
    assert output["stall_s"] == 0
    assert output["utilization"] == 1
    assert output["seconds_per_minibatch_gpu"] == pytest.approx(18)
    assert output["cut_bytes"] == 10
    assert {row["policy"] for row in output["compare"]} == {"gpipe", "pipedream", "zero-offload"}
    spans = [Span(**span) for span in output["spans"]]
    assert sum(span.end - span.start for span in spans if span.op in ("F", "B")) == pytest.approx(54)
    assert sum(span.op == "load" for span in spans) == output["loads_per_step"]


def test_a_given_accumulation_that_is_too_small_shows_what_it_would_cost() -> None:
    output = answer(accumulation=1)
    assert output["feasible"] is False
    assert "the smallest that does is 3" in output["reason"]
    assert output["stall_s"] > 0
    # 3 sub-models: visits of 2 s and 4 s beside loads of 6 s, and the two kept ones
    assert output["step_s"] == pytest.approx(4 * 6 + 2 + 4)


def test_what_is_given_as_printed_holds_one_sub_model_at_a_time() -> None:
    assert [(s["first"], s["last"]) for s in answer(resident=1)["sub_models"]] == [(0, 2), (3, 5)]
    assert len(answer(resident=1)["sub_models"]) < len(answer(resident=2)["sub_models"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": {"memory_bytes": 200}}, "what stays on the device takes 240 bytes"),
        ({"gpu": {"memory_bytes": 300}}, "layer 0 (block 0) needs 100 bytes: the GPU has 60 bytes left"),
        ({"gpu": {"memory_bytes": 150}, "gradients": "host"}, "one running and one loading, need 200 bytes"),
        (
            {"gpu": {"memory_bytes": 200}, "gradients": "host", "layers": [{**LAYER, "forward_s": 0}] * 3},
            "no accumulation up to 1,000,000 covers loading",
        ),
        ({"model": "gpt-3-175b", "layers": ..., "gpu": {"name": "t4"}}, "GiB"),
    ],
)
def test_what_cannot_be_is_a_result_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    output = answer(**changes)
    assert output["feasible"] is False
    assert reason in output["reason"]
    assert output["sub_models"] == output["spans"] == output["compare"] == []
    assert output["step_s"] is output["stall_s"] is output["utilization"] is output["loads_per_step"] is None


BAD = [
    ({"layers": ...}, "model", "give either model or layers"),
    ({"model": "tiny"}, "model", "give either model or layers"),
    ({"layers": []}, "layers", "at least 1"),
    ({"layers": ..., "model": "gpt-3-smal"}, "model", "did you mean 'gpt-3-small'"),
    ({"layers": ..., "model": "tiny"}, "gpu.tflops", "required"),
    ({"gpu": {}}, "gpu.memory_bytes", "required"),
    ({"gpu": {"name": "v1000"}}, "gpu.name", "did you mean 'v100'"),
    ({"gpu": {"memory_bytes": 0}}, "gpu.memory_bytes", "greater than 0"),
    ({"gpu": {"memory_bytes": 9, "host_to_device_gb_s": 0}}, "gpu.host_to_device_gb_s", "greater than 0"),
    ({"gpu": {"memory_bytes": 9, "tflops": -1}}, "gpu.tflops", "greater than 0"),
    ({"layers": [{**LAYER, "load_s": -1}]}, "layers[0].load_s", "greater than or equal to 0"),
    ({"layers": [{**LAYER, "forward_s": float("nan")}]}, "layers[0].forward_s", "finite"),
    ({"layers": [{**LAYER, "cut_bytes": 0.5}]}, "layers[0].cut_bytes", "whole"),
    ({"layers": [{**LAYER, "forward": 1}]}, "layers[0].forward", "did you mean 'forward_s'"),
    ({"layers": [{**LAYER, "forward_s": 0, "backward_s": 0}]}, "layers", "at least one layer"),
    ({"layers": ..., "model": {"layers": [{**LAYER, "load_s": -1}]}}, "model.layers[0].load_s", "greater"),
    ({"mfu": 0.5}, "mfu", "layers have their own times"),
    ({"layers": ..., "model": "tiny", "gpu": {"name": "v100"}, "mfu": 2}, "mfu", "less than"),
    ({"layers": [{**LAYER, "load_s": 1e12}]}, "layers[0].load_s", "less than or equal to 1000000000"),
    ({"compare": {**GOOD["compare"], "microbatches": 10**7}}, "compare.microbatches", "with 3 stages"),
    ({"accumulation": 0}, "accumulation", "greater than or equal to 1"),
    ({"accumulation": 1.5}, "accumulation", "integer"),
    ({"resident": 3}, "resident", "1 or 2"),
    ({"gradients": "disk"}, "gradients", "'device' or 'host'"),
    ({"workers": 0}, "workers", "greater than or equal to 1"),
    ({"allreduce_gbps": 0}, "allreduce_gbps", "greater than 0"),
    ({"workers": [{"gpu": {"memory_bytes": 9}, "count": 1}]}, "workers", "give a number"),
    ({"compare": {**GOOD["compare"], "stages": 7}}, "compare.stages", "at most one per layer"),
    (
        {"compare": {**GOOD["compare"], "links": [{"name": "x", "mbps": 0}]}},
        "compare.links[0].mbps",
        "greater than",
    ),
]


@pytest.mark.parametrize(("changes", "field", "allowed"), BAD)
def test_bad_input_is_one_line_that_names_the_field(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    changes: dict[str, Any],
    field: str,
    allowed: str,
) -> None:
    document = {k: v for k, v in {**copy.deepcopy(GOOD), **changes}.items() if v is not ...}
    status, out, err = run(monkeypatch, capsys, tmp_path, document, "--json")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"meridian: {field}: ")
    assert allowed in err


def test_the_table_and_the_json_say_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = {
        "model": "gpt-3-xl",
        "gpu": {"name": "v100"},
        "workers": 12,
        "global_batch": 256,
        "allreduce_gbps": 1,
        "compare": {"stages": 4, "microbatches": 4, "links": [{"name": "400 Mbps", "mbps": 400}]},
    }
    status, out, _ = run(monkeypatch, capsys, tmp_path, document, "--json")
    output = json.loads(out)
    assert status == 0
    assert output["feasible"]
    assert output["fleet"]["update_s"] > output["fleet"]["batch_s"] > 0
    assert output["allreduce_s"] == pytest.approx(output["fleet"]["gradient_bytes"] * 2 * 11 / 12 / 1.25e8)
    status, text, _ = run(monkeypatch, capsys, tmp_path, document, "--out", str(tmp_path / "out"))
    assert status == 0
    assert f"{output['accumulation']} mini-batches a step; {output['loads_per_step']} loads" in text
    assert "GPipe" in text
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == output
    assert json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]


def test_the_same_input_gives_the_same_answer_and_a_fleet_of_mixed_gpus_its_own_partitions() -> None:
    document = {
        "model": "gpt-3-2.7b",
        "gpu": {"name": "v100"},
        "workers": [{"gpu": {"name": "v100"}, "count": 2}, {"gpu": {"name": "t4"}, "count": 3}],
        "global_batch": 64,
        "allreduce_gbps": 1,
        "spans": False,
    }
    first, second = (plan_swap(parse(SwapRequest, document)).as_dict() for _ in range(2))
    assert first == second
    kinds = first["fleet"]["workers"]
    assert [kind["gpu"] for kind in kinds] == ["v100", "t4"]
    assert kinds[0]["step_s"] / kinds[0]["accumulation"] < kinds[1]["step_s"] / kinds[1]["accumulation"]
    assert "spans" not in first


def test_sub_models_cover_the_chain_in_order_and_fit() -> None:
    document = {"model": "gpt-3-13b", "gpu": {"name": "v100"}, "spans": False}
    result = plan_swap(parse(SwapRequest, document))
    assert result.feasible
    assert result.subs[0].first == 0
    assert result.subs[-1].last == len(result.layers) - 1
    for a, b in itertools.pairwise(result.subs):
        assert b.first == a.last + 1
        assert a.memory_bytes + b.memory_bytes <= result.capacity_bytes
        assert result.accumulation * a.forward_s >= b.load_s * (1 - 1e-9)
        assert result.accumulation * b.backward_s >= a.load_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"micro_batch": 10**6, "model": "llama-3-405b"}, "micro_batch"),
        ({"gpu": {"memory_bytes": 1e12, "tflops": 1e-9}, "mfu": 1e-6}, "gpu"),
        ({"model": {"layers": 10**6, "hidden": 64, "heads": 4, "seq": 64}}, "model.layers"),
        ({"dtype_bytes": 8, "gpu": {"name": "t4"}}, "dtype_bytes"),
    ],
)
def test_a_slip_of_the_pen_in_a_model_names_its_field(changes: dict[str, Any], field: str) -> None:
    document = {"model": "gpt-3-175b", "gpu": {"name": "v100"}, **changes}
    with pytest.raises(InputError) as raised:
        plan_swap(parse(SwapRequest, document))
    assert raised.value.field == field
