"""What `meridian train` refuses, by field."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.commands.train import command
from engine.errors import InputError
from engine.job.all_reduce import stage_parameters
from engine.job.predict import predict, schedule_of
from engine.train.corpus import open_corpus
from tests.runtime.jobs import document, job

EMULATED = {
    "device": "emulated",
    "times_ms": {"forward": 20, "recompute": 20, "backward": 40},
    "recompute": None,
}

NO_DCS = {"dc_of_stage": None}
SIX_LAYERS = {"layers": 6, "hidden": 32, "heads": 2, "seq": 16}
REFUSED = [
    ({"stages": 4}, "dc_of_stage"),
    ({"layers_per_stage": [1, 2]}, "^layers_per_stage: .*3 expected, 2 given"),
    ({"layers_per_stage": [1, 1, 2]}, "^layers_per_stage: .*add up to model.layers = 3"),
    ({"layers_per_stage": [3, 0, 0]}, r"^layers_per_stage\[1\]: 0"),
    (
        {"layers_per_stage": [4, 1, 1], "model": SIX_LAYERS, "chunks": 2, "policy": "interleaved"},
        r"^layers_per_stage\[1\]: 1: at least one for each of a stage's 2 chunks",
    ),
    ({"dc_of_stage": [0, 0, 2]}, r"dc_of_stage\[2\]"),
    ({"dc_of_stage": [0, 1, 1]}, r"datacenters\[1\].gpus"),
    ({"links": []}, "no link joins them"),
    (
        {"links": [{"between": ["north", "sout"], "latency_ms": 1, "bandwidth_gbps": 1}]},
        "did you mean 'south'",
    ),
    (
        {"links": [{"between": ["north", "north"], "latency_ms": 1, "bandwidth_gbps": 1}]},
        r"links\[0\].between",
    ),
    (
        {"links": [{"between": ["north", "south"], "latency_ms": -1, "bandwidth_gbps": 1}]},
        r"links\[0\].latency_ms",
    ),
    ({"links": [{"between": ["north", "south"], "latency_ms": 1, "bandwidth_gbps": 0}]}, "bandwidth_gbps"),
    ({"datacenters": [{"name": "north", "gpus": 4}, {"name": "north", "gpus": 2}]}, r"datacenters\[1\].name"),
    ({"model": {"layers": 2, "hidden": 32, "heads": 2, "seq": 16}}, "model.layers"),
    ({"model": {"layers": 3, "hidden": 32, "heads": 3, "seq": 16}}, "model.heads"),
    ({"policy": "atlos"}, "did you mean 'atlas'"),
    ({"policy": "interleaved", "chunks": 2}, "model.layers.*3 stages × 2 chunks"),
    ({"schedule": "microbatches 3"}, "schedule.*must read"),
    ({"model": {"layers": 3, "hidden": 32, "heads": 2, "seq": 16, "family": "bert"}}, "model.family"),
    ({"model": {"layers": 3, "hidden": 32, "heads": 2, "seq": 16, "kv_heads": 1}}, "model.kv_heads.*gpt"),
    ({"lr_schedule": {"decay": "cosin"}}, "lr_schedule.decay"),
    ({"accumulation": 0}, "accumulation"),
    ({"resume": True}, "resume.*checkpoint.dir"),
    ({"resume": 3}, "resume"),
    ({"checkpoint": {"dir": "x"}}, "checkpoint.every.*required"),
    ({"checkpoint": {"dir": "", "every": 5}}, "checkpoint.dir"),
    ({"checkpoint": {"dir": "x", "every": 0}}, "checkpoint.every"),
    ({"checkpoint": {"dir": "x", "every": 1, "keeep": 2}}, "did you mean 'keep'"),
    ({"checkpoint": {"dir": "x", "every": 1, "max_gb": 0}}, "checkpoint.max_gb"),
    ({"devices": {}}, "devices.pipelines.*missing"),
    ({"devices": {"pipelines": [[0, 1, 4], [2, 3, 5]]}}, "dc_of_stage.*left out"),
    ({**NO_DCS, "devices": {"pipelines": [[0, 1, 4]]}}, "devices.pipelines.*2 expected, 1 given"),
    ({**NO_DCS, "devices": {"pipelines": [[0, 1, 4], [2, 3]]}}, r"devices.pipelines\[1\].*3 expected"),
    ({**NO_DCS, "devices": {"pipelines": [[0, 1, 4], [2, 3, 6]]}}, r"pipelines\[1\]\[2\].*0 to 5"),
    ({**NO_DCS, "devices": {"pipelines": [[0, 1, 4], [2, 0, 5]]}}, r"pipelines\[1\]\[1\].*twice"),
    (
        {**NO_DCS, "devices": {"pipelines": [[0, 1, 4], [2, 3, 5]], "groups": [[0, 1], [2, 3], [4, 5]]}},
        "groups",
    ),
    ({**NO_DCS, "devices": {"pipelines": [[0, 1, 4], [5, 2, 3]]}, "sharing": "temporal"}, "sharing"),
    ({**NO_DCS, "devices": {"pipelines": [[0, 1, 2], [4, 5, 3]]}, "links": []}, "stage 0's replicas|join"),
    ({"chunks": 2}, "chunks"),
    ({"strategy": "swap"}, "policy.*order is that of ATOM"),
    ({"strategy": "swop"}, "did you mean 'swap'"),
    ({"swap": {"gpu": {"memory_bytes": 1e6}}}, "swap.*applies only to strategy swap"),
    ({"dtype": "fp16"}, "dtype"),
    ({"ranks_per_gpu": 2}, "ranks_per_gpu.*only cuda shares"),
    ({"device": "cuda", "ranks_per_gpu": 2, "tp": 2, "pipelines": 1}, "ranks_per_gpu.*1 with tp"),
    ({"device": "cuda", "ranks_per_gpu": 0}, "ranks_per_gpu"),
    ({"device": {"kind": "cpu", "nccl": False}}, "device.nccl: False.*only cuda"),
    ({"device": {"kind": "cuda", "nccl": False}, "tp": 2, "pipelines": 1}, "device.nccl: False.*with tp"),
    ({"device": {"kind": "cuda", "nccl": True, "ranks_per_gpu": 2}}, "device.nccl: True.*share a GPU"),
    ({"device": {"kind": "cuda", "nccl": "no"}}, "device.nccl"),
    (
        {"device": "cuda", "times_ms": {"forward": 1, "backward": 2}, "activation_bytes": 10**7},
        "only device emulated",
    ),
    ({"device": "emulated"}, "times_ms.*required"),
    ({**EMULATED, "times_ms": {"forward": [20, 4, 20], "backward": 40}}, r"times_ms.forward\[1\]"),
    ({**EMULATED, "times_ms": {"forward": [20, 20], "backward": 40}}, "times.forward|times_ms.forward"),
    ({**EMULATED, "activation_bytes": 100}, "activation_bytes.*at least"),
    ({"activation_bytes": 10_000_000}, "only device emulated"),
    ({"steps": 0}, "steps"),
    ({"lr": -1}, "lr"),
    ({"microbatchs": 3}, "did you mean 'microbatches'"),
    ({"connections": "many"}, "connections"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_refused_with_the_field(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        schedule_of(job(**changes))


def test_refused_data(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(InputError, match="no such file"):
        open_corpus(str(tmp_path / "none"), seq=16, seed=0)
    with pytest.raises(InputError, match="at least 17"):
        open_corpus(str(tmp_path), seq=16, seed=0)


def test_transfer_times_follow_window_and_cap() -> None:
    link = {"between": ["north", "south"], "latency_ms": 40, "bandwidth_gbps": 5}
    padded = {**EMULATED, "links": [link], "activation_bytes": 5_000_000}
    single, auto = job(**padded, connections=1), job(**padded)
    # 5 MB at 23.9 Mbit a round trip of 80 ms, and at the cap of 5 Gbps with 17 connections
    assert single.hops[1].transfer_ms(single.wan_bytes) == pytest.approx(40 / (23.9 / 80), rel=1e-6)
    assert auto.hops[1].transfer_ms(auto.wan_bytes) == pytest.approx(8.0, rel=1e-6)
    assert auto.hops[1].connections == 17


def test_prediction_adds_allreduce_and_optimizer() -> None:
    of = job(**EMULATED)
    given = predict(of, allreduce_s=(0.5, 0.0, 0.0), optimizer_s=(0.25, 0.0, 0.0))
    assert given.iteration_s == pytest.approx(given.makespan_s + 0.75)
    assert {s.op for s in given.spans if s.track == "gpu"} == {"F", "R", "B", "all_reduce", "optimizer"}
    busy_s = sum(s.end - s.start for s in given.spans if s.op in ("F", "R", "B"))
    assert given.utilization == pytest.approx(busy_s / (given.iteration_s * 6))
    assert sum(stage_parameters(of, s) for s in range(3)) == of.model.shape.parameters


def test_command_trains_and_writes_spans_and_trace(tmp_path: Path) -> None:
    one = document(stages=1, pipelines=1, dc_of_stage=[0], policy="gpipe", recompute=False, steps=4)
    (tmp_path / "job.json").write_text(json.dumps(one))
    arguments = [
        str(tmp_path / "job.json"),
        "--json",
        "--trace",
        str(tmp_path / "t"),
        "--out",
        str(tmp_path / "out"),
    ]
    answer = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert answer.exception is None
    assert answer.return_value == 0
    result = json.loads(answer.stdout)
    assert result["steps"] == len(result["losses"]) == 4
    assert result["iteration_ms"]["simulated"] > 0
    assert len((tmp_path / "out/spans.jsonl").read_text().splitlines()) == 4 * (3 + 3 + 1)
    assert json.loads((tmp_path / "t").read_text())["traceEvents"]
    assert json.loads((tmp_path / "out/result.json").read_text()) == result
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "result.json",
        "metrics.csv",
        "spans.jsonl",
        "logs",
    }, "the trace went where it was asked to"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "option",
    [
        "--spans",
        pytest.param("--trace", marks=pytest.mark.long),
        pytest.param("--metrics", marks=pytest.mark.long),
    ],
)
def test_a_full_disk_costs_the_file_and_not_the_result(tmp_path: Path, option: str) -> None:
    one = document(stages=1, pipelines=1, dc_of_stage=[0], policy="gpipe", recompute=False, steps=2)
    (tmp_path / "job.json").write_text(json.dumps(one))
    arguments = [str(tmp_path / "job.json"), "--json", option, "/dev/full"]
    answer = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert answer.return_value == 1
    assert json.loads(answer.stdout)["steps"] == 2
    assert "No space left" in answer.stderr


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data": ""}, "data"),
        ({"data": 5}, "data"),
        ({"data": "a\0b"}, "data"),
        ({"data": "~nobody-of-that-name/x"}, "data"),
        ({"data": {"north": "a\0b", "south": "x"}}, "data.north"),
        ({"data": "x" * 5000}, "data"),
        ({"resume": "a\0b"}, "resume"),
        ({"checkpoint": {"dir": "a\0b", "every": 1}}, "checkpoint.dir"),
        ({"memory_limit": 10**30}, "memory_limit"),
        ({"times_ms": {"forward": [10, 20], "backward": 20}}, "times_ms.forward"),
        ({"times_ms": {"forward": 10, "backward": [20, 20, 1e15]}}, "times_ms.backward[2]"),
        ({"times_ms": {"rows": []}}, "times_ms.rows"),
        ({"datacenters": [{"name": "north", "gpus": 10**12}]}, "datacenters[0].gpus"),
        ({"microbatches": 10_000, "accumulation": 10}, "microbatches"),
        ({"microbatches": 10_000, "accumulation": 10_000}, "microbatches"),
    ],
)
def test_what_is_no_path_and_no_number_is_named(tmp_path: Path, changes: Any, field: str) -> None:
    (tmp_path / "job.json").write_text(json.dumps(document(**changes)))
    answer = CliRunner().invoke(command, [str(tmp_path / "job.json")], standalone_mode=False)
    assert isinstance(answer.exception, InputError)
    assert answer.exception.field == field
