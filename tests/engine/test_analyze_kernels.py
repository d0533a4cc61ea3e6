"""`meridian analyze` of profiles of GPUs, made by hand: kernels with and without the names of ops."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.analyze.formats import load
from engine.analyze.result import analyze


def event(category: str, name: str, start: float, length: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length}


def write(folder: Path, rank: int, world: int, events: list[dict[str, Any]], **info: Any) -> None:
    document = {"distributedInfo": {"rank": rank, "world_size": world, **info}, "traceEvents": events}
    (folder / f"rank{rank}_trace.json").write_text(json.dumps(document))


def test_without_names_kernels_tell_utilization_alone(tmp_path: Path) -> None:
    """Megatron's: compute kernels that touch or overlap are one interval, and NCCL's do not count."""
    for rank, by in ((0, 0.0), (1, 40.0)):
        write(
            tmp_path,
            rank,
            2,
            [
                event("kernel", "gemm", by + 0, 30),
                event("kernel", "gelu", by + 20, 20),
                event("kernel", "ncclDevKernel_SendRecv", by + 40, 20),
                event("cpu_op", "aten::linear", by, 60),
            ],
        )
    ours = analyze(load(tmp_path)).as_dict()
    assert ours["step_s"] == pytest.approx(80e-6)
    assert ours["utilization"] == pytest.approx(0.5)
    assert ours["bubbles"]["total_s"] == pytest.approx(80e-6)
    for lacking in ("no_delay_step_s", "ideal_step_s", "slowdown", "slowdown_by_op", "critical_path"):
        assert ours[lacking] is None
    assert "does not tell forwards from backwards" in ours["notes"][0]


def test_named_ops_on_gpus_last_from_their_first_to_their_last_kernel(tmp_path: Path) -> None:
    """Two stages of two replicas, as torchtitan names them; the annotation covers the receive before."""
    for rank in range(4):
        stage, events = rank % 2, []
        for microbatch in range(2):
            at = 10.0 + 10 * microbatch + 10 * stage
            events += [
                event("gpu_user_annotation", f"PP:{stage}F{microbatch}", at - 5, 15),
                event("kernel", "ncclDevKernel_SendRecv", at - 5, 5),
                event("kernel", "gemm", at, 10),
                event("user_annotation", f"PP:{stage}F{microbatch}", 0, 1),
            ]
            at = 60.0 + 20 * microbatch - 20 * stage
            events += [
                event("gpu_user_annotation", f"PP:{stage}B{microbatch}", at, 20),
                event("kernel", "gemm", at, 20),
            ]
        write(tmp_path, rank, 4, events)
    ours = analyze(load(tmp_path)).as_dict()
    assert ours["layout"] == {"replicas": 2, "stages": 2, "chunks": 1, "gpus": 4}
    assert ours["step_s"] == pytest.approx(90e-6)
    assert ours["utilization"] == pytest.approx(60 / 90)
    assert ours["no_delay_step_s"] == pytest.approx(90e-6)


def test_a_schedule_that_runs_twice_in_a_step_is_two_steps(tmp_path: Path) -> None:
    """Without marks of steps, and where gradients of two runs are added up."""
    events = []
    for at in (0.0, 100.0):
        events += [
            event("user_annotation", "Forward 0", at, 10),
            event("user_annotation", "Backward 0", at + 10, 20),
        ]
    write(tmp_path, 0, 1, events)
    ours = analyze(load(tmp_path)).as_dict()
    assert ours["steps"] == 2
    assert ours["step_s"] == pytest.approx(30e-6)
    assert ours["utilization"] == pytest.approx(1)


def test_what_a_host_computes_before_its_first_operator_counts(tmp_path: Path) -> None:
    """1F1B names no ops. Python's work before an operator counts; a loader's and an optimizer's does not."""
    events = [
        event("user_annotation", "ProfilerStep#3", 0, 200),
        event("user_annotation", "enumerate(DataLoader)#next", 0, 20),
        event("cpu_op", "aten::linear", 50, 10),
        event("cpu_op", "c10d::send", 60, 1),
        event("user_annotation", "gloo:send", 61, 40),
        event("cpu_op", "c10d::recv_", 62, 1),
        event("user_annotation", "gloo:recv", 63, 37),
        event("cpu_op", "autograd::engine::evaluate_function: LinearBackward0", 110, 50),
        event("user_annotation", "Optimizer.step#SGD.step", 165, 30),
        event("cpu_op", "aten::add_", 170, 20),
    ]
    write(tmp_path, 0, 1, events)
    ours = analyze(load(tmp_path)).as_dict()
    assert ours["ops"] == 2
    assert ours["step_s"] == pytest.approx(140e-6)
    assert ours["utilization"] == pytest.approx((40 + 59) / 140)


def test_stages_come_from_the_group_of_the_pipeline(tmp_path: Path) -> None:
    """Ranks 0 and 2 are one pipeline, 1 and 3 the other."""
    for rank in range(4):
        start = 10.0 * (rank // 2)
        events = [
            event("user_annotation", "Forward 0", start, 10),
            event("user_annotation", "Backward 0", 40 - 2 * start, 20),
        ]
        group = {"pg_desc": "mesh_pp", "ranks": [rank % 2, rank % 2 + 2]}
        write(tmp_path, rank, 4, events, pg_config=[{"pg_desc": "default_pg", "ranks": [0, 1, 2, 3]}, group])
    ours = analyze(load(tmp_path)).as_dict()
    assert ours["layout"] == {"replicas": 2, "stages": 2, "chunks": 1, "gpus": 4}
    assert ours["no_delay_step_s"] == pytest.approx(60e-6)
