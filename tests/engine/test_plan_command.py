"""`meridian plan` from outside: bad input by field, exit codes, JSON that is JSON, and the table."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from engine.errors import InputError
from engine.inputs import parse
from engine.plan.answer import plan
from engine.plan.request import PlanRequest

GOOD: dict[str, Any] = {
    "datacenters": [
        {"name": "east", "gpus": 40, "gpu_type": "a100-80g", "price_per_gpu_hour": 2.5},
        {"name": "west", "gpus": 20, "gpu_type": "a100-80g", "price_per_gpu_hour": 2},
    ],
    "links": [{"between": ["east", "west"], "latency_ms": 20, "bandwidth_gbps": 5}],
    "job": {
        "partitions": 6,
        "microbatches": 4,
        "forward_ms": 10,
        "backward_ms": 20,
        "recompute_ms": 10,
        "comm_to_compute": 2,
        "parameters_per_stage": 4e8,
        "activation_bytes": 3e7,
    },
    "method": "algorithm1",
}


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["meridian", *args])
    with pytest.raises(SystemExit) as exit_:
        main()
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with the field at `path` (``job.partitions``) set, or gone where ``...``."""
    document = copy.deepcopy(GOOD)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    owner: Any = document
    for part in parents:
        owner = owner[part]
    if value is ...:
        del owner[last]
    else:
        owner[last] = value
    return document


BACK = {"between": ["west", "east"], "latency_ms": 40, "bandwidth_gbps": 15}

BAD = [
    ("method", "magic", "method", "algorithm1"),
    ("datacenters", [], "datacenters", "at least 1"),
    ("datacenters.1.name", "east", "datacenters[1].name", "datacenters[0]"),
    ("datacenters.0.gpus", -1, "datacenters[0].gpus", "greater than or equal to 0"),
    ("datacenters.0.gpus", 1.5, "datacenters[0].gpus", "integer"),
    ("datacenters.0.gpus", True, "datacenters[0].gpus", "not true or false"),
    ("datacenters.0.gpu_type", "a100-80gb", "datacenters[0].gpu_type", "did you mean 'a100-80g'?"),
    ("datacenters.0.gpu_type", "h100-80g", "datacenters[0].gpu_type", "did you mean 'h100'?"),
    ("datacenters.0.gpu_type", 3, "datacenters[0].gpu_type", "object"),
    ("datacenters.0.gpu_type", {"peak_tflops": 9, "memory_gb": 8}, "datacenters[0].gpu_type.hbm_gb_s", "req"),
    ("datacenters.0.link_gb_s", 9, "datacenters[0].link_gb_s", "GPU type of the catalogue"),
    ("datacenters.0.price_per_gpu_hour", -2, "datacenters[0].price_per_gpu_hour", "or equal to 0"),
    ("datacenters.0.price_per_gpu_hour", ..., "datacenters[0].price_per_gpu_hour", "required"),
    ("datacenters.0.latitude", 91, "datacenters[0].latitude", "less than or equal to 90"),
    ("datacenters.0.longitude", -181, "datacenters[0].longitude", "greater than or equal to -180"),
    ("datacenters.0.intra_gbps", 0, "datacenters[0].intra_gbps", "greater than"),
    ("datacenters.0.gpu", 3, "datacenters[0].gpu", "did you mean 'gpus'?"),
    ("links.0.between", ["east", "wset"], "links[0].between[1]", "did you mean 'west'?"),
    ("links.0.between", ["east", "east"], "links[0].between[1]", "two different"),
    ("links.0.between", ["east"], "links[0].between", "at least 2"),
    ("links", [GOOD["links"][0]] * 2, "links[1].between", "already joined by links[0]"),
    ("links", [GOOD["links"][0], BACK, BACK], "links[2].between", "already joined by links[1]"),
    ("links", [GOOD["links"][0], {**BACK, "connections": 3}], "links[1].connections", "as in links[0]"),
    ("links.0.latency_ms", "20", "links[0].latency_ms", "number"),
    ("links.0.bandwidth_gbps", 0, "links[0].bandwidth_gbps", "greater than"),
    ("links.0.connections", 0, "links[0].connections", "greater than or equal to 1"),
    ("links.0.egress_price_per_gb", -1, "links[0].egress_price_per_gb", "greater than or equal to 0"),
    ("order", ["east"], "order", "missing: west"),
    ("order", ["east", "east"], "order[1]", "named twice"),
    ("order", ["east", "north"], "order[1]", "unknown data centre"),
    ("order", "size", "order", "'gpus' or 'price'"),
    ("allowed", ["north"], "allowed[0]", "unknown data centre"),
    ("allowed", [], "allowed", "at least one"),
    ("policy", "varune", "policy", "did you mean 'varuna'?"),
    ("policy", "autos", "policy", "'auto'"),
    ("objective", "speed", "objective", "'throughput'"),
    ("bill", "half", "bill", "'used' or 'whole'"),
    ("max_dp_cells", 0, "max_dp_cells", "greater than or equal to 1"),
    ("deadline_h", 5, "iterations", "required with deadline_h"),
    ("datacenters", [], "datacenters", "must have at least 1 entry, and has 0"),
    ("links.0.between", ["a", "b", "c"], "links[0].between", "must have at most 2 entries, and has 3"),
    ("budget_per_iteration", -1, "budget_per_iteration", "greater than or equal to 0"),
    ("alreduce", False, "alreduce", "did you mean 'allreduce'?"),
    ("job", ..., "job", "required"),
    ("job.partitions", 0, "job.partitions", "greater than or equal to 1"),
    ("job.microbatches", 10_000_000_000, "job.microbatches", "less than or equal to"),
    ("links.0.bandwidth_gbps", 1e-300, "links[0].bandwidth_gbps", "0.000001"),
    ("job.forward_ms", 1e15, "job", "cannot be simulated"),
    ("job.forward_ms", 0, "job.forward_ms", "greater than 0"),
    ("job.forward_ms", ..., "job.forward_ms", "required"),
    ("job.comm_to_compute", float("nan"), "job.comm_to_compute", "finite"),
    ("job.parameters_per_stage", ..., "job.parameters_per_stage", "allreduce: false"),
    ("job.model", "gpt-a", "job.forward_ms", "comes from the model"),
    ("job.mfu", 0.5, "job.mfu", "give model"),
    ("job", {"partitions": 6, "microbatches": 4, "model": "gpt-c"}, "job.model", "did you mean 'gpt-"),
    ("job", {"partitions": 6, "microbatches": 4, "model": "tiny", "mfu": 1.5}, "job.mfu", "equal to 1"),
    ("job", {"partitions": 7, "microbatches": 4, "model": "tiny"}, "job.partitions", "the model has 6"),
    ("job", {"partitions": 6, "microbatches": 2, "model": "tiny", "dtype_bytes": 1}, "job.dtype_bytes", "2"),
    (
        "job",
        {"partitions": 1, "microbatches": 4, "model": {"layers": 1, "hidden": 10, "heads": 3, "seq": 8}},
        "job.model.heads",
        "must divide",
    ),
]


@pytest.mark.parametrize(("path", "value", "field", "allowed"), BAD)
def test_bad_input_is_one_line_that_names_the_field(
    path: str,
    value: Any,
    field: str,
    allowed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(changed(path, value)))
    status, out, err = run(monkeypatch, capsys, "plan", str(file))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"meridian: {field}: ")
    assert allowed in err


def test_more_partitions_than_gpus_is_a_result_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(changed("job.partitions", 100)))
    status, out, _ = run(monkeypatch, capsys, "plan", str(file), "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["feasible"] is False
    assert answer["best"] is None
    assert "only 30 of 100 stages fit; 70 short, 140 more GPUs" in answer["reason"]
    status, out, _ = run(monkeypatch, capsys, "plan", str(file))
    assert status == 0
    assert "D = 1: infeasible: 2 GPUs per stage" in out


def test_the_json_has_every_field_of_the_contract_and_only_finite_numbers(tmp_path: Path) -> None:
    """Through the installed command, from standard input, in a process of its own."""
    program = [sys.executable, "-m", "engine.cli", "plan", "-", "--json"]
    done = subprocess.run(program, input=json.dumps(GOOD), capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} in the answer"))
    assert {"cell_pipelines", "options", "best", "pareto", "excluded"} <= set(answer)
    option = answer["options"][answer["best"]]
    assert set(option) >= {
        "dp_cells",
        "pipelines",
        "feasible",
        "reason",
        "partitions",
        "gpus_used",
        "policy",
        "pp_time_ms",
        "lower_bound_ms",
        "allreduce_ms",
        "iteration_ms",
        "throughput",
        "tokens_per_s",
        "egress_gb",
        "cost_per_iteration",
        "cost_per_million_tokens",
    }
    assert option["partitions"] == [{"dc": "east", "stages": 4}, {"dc": "west", "stages": 2}]
    assert option["gpus_used"] == {"east": 40, "west": 20}
    # Neither torch nor Django for a plan.
    code = "import sys; import engine.commands.plan, engine.plan.dc_selection as p; "
    code += "sys.exit(bool({'torch', 'django', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_table_marks_the_best_and_says_why_a_data_centre_is_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(json.dumps(changed("datacenters.1.gpus", 1)))
    status, out, _ = run(monkeypatch, capsys, "plan", str(file))
    assert status == 0
    assert sum(line.rstrip().endswith(("best", "best, Pareto")) for line in out.splitlines()) == 1
    assert "not used: west: has 1 GPUs; one stage of one DP-cell needs 2" in out


OWN = {"peak_tflops": 312, "memory_gb": 80 * 2**30 / 1e9, "hbm_gb_s": 2039}


def planned(document: dict[str, Any]) -> dict[str, Any]:
    return plan(parse(PlanRequest, document)).as_dict()


def modelled(gpu_type: Any, **job: Any) -> dict[str, Any]:
    place = {"name": "a", "gpus": 8, "gpu_type": gpu_type, "price_per_gpu_hour": 2}
    job = {"model": "llama-3-8b", "partitions": 2, "microbatches": 4, **job}
    return {"datacenters": [place], "job": job, "method": "algorithm1", "policy": "1f1b", "max_dp_cells": 1}


@pytest.mark.parametrize("job", [{"mfu": 0.4, "partitions": 4}, {"mfu": 0.4, "tp": 2}, {"partitions": 8}])
def test_own_figures_of_a_gpu_count_as_those_of_the_catalogue(job: dict[str, Any]) -> None:
    own, known = (planned(modelled(gpu, **job)) for gpu in (OWN, "a100-80g"))
    assert own["options"] == known["options"]


def test_gpus_of_own_figures_are_told_apart() -> None:
    document = modelled(OWN, mfu=0.4, partitions=2)
    document["datacenters"].append(
        {**document["datacenters"][0], "name": "b", "gpu_type": {**OWN, "peak_tflops": 31.2}}
    )
    slow, fast = (planned({**document, "allowed": [name]}) for name in ("b", "a"))
    assert slow["forward_ms"] == pytest.approx(10 * fast["forward_ms"])


def test_tensor_parallelism_on_own_figures_needs_the_rate_of_links() -> None:
    with pytest.raises(InputError, match="link_gb_s"):
        planned(modelled(OWN, tp=2))
    document = modelled(OWN, tp=2)
    document["datacenters"][0]["link_gb_s"] = 300
    assert planned(document)["options"][0]["iteration_ms"] > 0


@pytest.mark.parametrize(("tp", "name"), [(16, "kv_heads = 8"), (3, "heads = 32")])
def test_tensor_parallelism_that_training_refuses_is_not_planned(tp: int, name: str) -> None:
    with pytest.raises(InputError, match=f"job.tp: {tp}: must divide the model's {name}"):
        planned(modelled("a100-80g", tp=tp))


def test_directions_that_differ_count_by_their_mean_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = planned(changed("links", [GOOD["links"][0], BACK]))
    mean = planned(changed("links", [{**GOOD["links"][0], "latency_ms": 30, "bandwidth_gbps": 10}]))
    assert both.pop("symmetrised") == [["east", "west"]]
    assert both == mean
    same = planned(changed("links", [GOOD["links"][0], {**GOOD["links"][0], "between": ["west", "east"]}]))
    assert same == planned(GOOD)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(changed("links", [GOOD["links"][0], BACK])))
    _, message, _ = run(monkeypatch, capsys, "plan", str(file))
    assert "link east – west: its two directions differ; their mean counts in both" in message
