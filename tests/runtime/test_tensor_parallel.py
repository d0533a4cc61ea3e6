"""Stages that several ranks compute: what they compute, who speaks for them, what is refused."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import InputError
from engine.job.launch import LaunchSpec, single_machine
from tests.runtime import swap_jobs
from tests.runtime.held_out import held_out_loss
from tests.runtime.jobs import Run, job
from tests.runtime.test_gpus import Gpu
from tests.runtime.test_training_equals_single import reference
from tests.runtime.tp_ranks import CASES

CLOSE = {"fp32": 1e-5, "fp64": 1e-9, "bf16": 3e-2}
TWO_DCS = {
    "datacenters": [{"name": "north", "gpus": 4}, {"name": "south", "gpus": 4}],
    "stages": 2,
    "dc_of_stage": [0, 1],
    "tp": 2,
    "model": {"layers": 2, "hidden": 32, "heads": 4, "seq": 16},
}
LLAMA = {"family": "llama", "layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "seq": 16}


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[str, list[dict[str, Any]]]]:
    """What the ranks of each case found beside one process."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.tp_ranks"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        answer, _ = program.communicate(timeout=280)
        assert program.returncode == 0
        yield json.loads(answer)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


@pytest.mark.parametrize("name", CASES)
def test_ranks_of_a_stage_compute_what_one_does(name: str, figures: dict[str, list[dict[str, Any]]]) -> None:
    tp, close = CASES[name]["tp"], CLOSE[CASES[name]["dtype"]]
    assert len(figures[name]) == tp
    for rank in figures[name]:
        assert rank["told"] < close, "losses and squared norms"
        assert rank["gradients"] < close
        if CASES[name]["dtype"] == "fp64":
            assert rank["weights"] < close
        assert rank["whole"], "what is put together has the bits that were cut"
        assert rank["part"], "what is cut anew has the bits of the first cut"
        assert 1 / tp < rank["held"] < 1.1 / tp, "norms and positions alone are on all ranks"
        # To the bit, weights that all ranks have included: they do not drift apart.
        assert rank["digests"] == figures[name][0]["digests"]


def check(folder: Path, **changes: Any) -> tuple[Run, dict[str, Any]]:
    """A run has the losses and norms of one process."""
    of = job(**{**TWO_DCS, **changes})
    losses, norms, _ = reference(of)
    run = Run(of, str(folder / "log"))
    result = run.result()
    assert result["losses"] == pytest.approx(losses, rel=CLOSE[of.device.dtype])
    assert result["grad_norms"] == pytest.approx(norms, rel=CLOSE[of.device.dtype])
    return run, result


def test_two_stages_two_pipelines_two_ranks_each_equal_one_process(tmp_path: Path) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 2}
    validation = {"every": 2, "sequences": 5}
    run, result = check(tmp_path, clip=0.5, checkpoint=saves, validation=validation)
    assert result["checkpoints"] == {"saved": 2, "failed": 0, "last_step": 3}
    loss = held_out_loss(run.job, tmp_path / "saved")
    assert result["validation"][-1]["loss"] == pytest.approx(loss, rel=1e-5)
    # Leads alone speak: four of the eight ranks have spans, and the WAN carries each message once.
    assert {event["rank"] for event in run.of_kind("rank") if event["state"] == "finished"} == set(range(8))
    assert {event["rank"] for event in run.of_kind("spans")} == {0, 1, 2, 3}
    messages = run.job.cell.pipelines * run.job.cell.microbatches * run.job.optimizer.steps
    assert [way["bytes"] for way in result["wan"]] == [messages * run.job.wan_bytes] * 2


THE_REST = [
    {"policy": "1f1b", "recompute": False, "dtype": "fp64", "model": LLAMA},
    {"policy": "atlas", "sharing": "temporal", "dtype": "fp64", "model": LLAMA},
    {"policy": "varuna", "pipelines": 1},
    {"policy": "zb-h1", "pipelines": 1, "recompute": False, "accumulation": 2, "model": LLAMA},
    {"policy": "zb-v", "pipelines": 1, "recompute": False, "dtype": "fp64"},
    {"policy": "crosspipe-wave", "pipelines": 1, "model": LLAMA, "clip": 1.0},
    {"policy": "interleaved", "pipelines": 1, "model": LLAMA, "microbatches": 4},
    {"policy": "gpipe", "dc_of_stage": [0, 0], "pipelines": 1},
    {"policy": "1f1b", "stages": 1, "dc_of_stage": [0], "pipelines": 1, "tp": 4, "dtype": "fp64"},
    {"policy": "atlas", "cells": 2},
    {"policy": "auto", "pipelines": 1, "time_limit_s": 2},
]


@pytest.mark.long
@pytest.mark.parametrize("changes", THE_REST, ids=lambda c: "-".join(map(str, c.values())))
def test_every_kind_of_schedule(changes: dict[str, Any], tmp_path: Path) -> None:
    if "zb-v" in changes["policy"]:
        changes = {**changes, "model": {**TWO_DCS["model"], "layers": 4}}
    check(tmp_path, **changes)


@pytest.mark.long
def test_bf16_is_near_what_one_rank_a_stage_computes(tmp_path: Path) -> None:
    values = {**TWO_DCS, "dtype": "bf16", "model": LLAMA, "pipelines": 1}
    two = Run(job(**values), str(tmp_path / "two")).result()
    one = Run(job(**{**values, "tp": 1}), str(tmp_path / "one")).result()
    assert two["losses"] == pytest.approx(one["losses"], rel=3e-3)


@pytest.mark.long
def test_all_ranks_end_at_one_boundary(tmp_path: Path) -> None:
    run = Run(job(**{**TWO_DCS, "pipelines": 1, "steps": 10_000}), str(tmp_path))
    try:
        assert run.training.wait(240)
    finally:
        run.group.stop_at_boundary()
    result = run.result()
    assert 0 < result["steps"] < 10_000
    assert result["steps"] == run.of_kind("boundary")[0]["iteration"] + 1
    assert {e["rank"] for e in run.of_kind("rank") if e["state"] == "finished"} == {0, 1, 2, 3}


def test_a_rank_that_is_killed_fails_the_run_and_is_named(tmp_path: Path) -> None:
    changes = {"stages": 1, "dc_of_stage": [0], "pipelines": 1, "steps": 10_000, "policy": "1f1b"}
    run = Run(job(**{**TWO_DCS, **changes}), str(tmp_path))
    try:
        assert run.training.wait(240)
        pids = {e["rank"]: e["pid"] for e in run.of_kind("rank") if e["state"] == "running"}
        os.kill(pids[1], signal.SIGKILL)
        assert run.group.wait(240)
    finally:
        run.group.stop(0.0)
    states = {e["rank"]: e for e in run.of_kind("rank")}
    assert states[1]["state"] == "failed"
    assert "SIGKILL" in states[1]["detail"]
    assert states[0]["state"] == "stopped"


@pytest.mark.long
def test_a_rank_that_hangs_beside_a_lead_that_talks_on_is_noticed(tmp_path: Path) -> None:
    run = Run(job(**{**TWO_DCS, "pipelines": 1, "steps": 10_000}), str(tmp_path))
    try:
        assert run.training.wait(240)
        (follower,) = (a.rank for a in run.group.spec.ranks if a.stage == 1 and not a.leads)
        pid = next(e["pid"] for e in run.of_kind("rank") if e["rank"] == follower and e["pid"])
        os.kill(pid, signal.SIGSTOP)
        assert run.group.wait(240)
    finally:
        run.group.stop(0.0)
    states = {e["rank"]: e for e in run.of_kind("rank")}
    assert states[follower]["state"] == "failed"
    assert states[follower]["detail"].startswith("silent for")


def test_ranks_are_numbered_leads_first_and_take_gpus_side_by_side() -> None:
    spec = single_machine(job(**TWO_DCS, device="cuda"), run="x", log_dir="")
    places = [(a.shard, a.pipeline, a.stage) for a in spec.ranks]
    assert places == [(t, p, s) for t in range(2) for p in range(2) for s in range(2)]
    assert [a.rank for a in spec.ranks] == list(range(8)) == list(spec.local)
    assert [a.gpu for a in spec.ranks] == [0, 2, 4, 6, 1, 3, 5, 7]
    for lead, other in zip(spec.ranks[:4], spec.ranks[4:], strict=True):
        assert (lead.node, lead.dc, lead.host) == (other.node, other.dc, other.host)
    assert LaunchSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 3}, "tp: 3.*must divide model.heads = 4"),
        ({"model": LLAMA, "tp": 4}, "tp: 4.*must divide model.kv_heads = 2"),
        ({"model": {**LLAMA, "ffn": 63}}, "tp: 2.*must divide model.ffn = 63"),
        (
            {
                "model": {**LLAMA, "hidden": 512, "heads": 256, "kv_heads": 256, "ffn": 256, "vocab": 270},
                "tp": 256,
                "stages": 1,
                "pipelines": 1,
                "dc_of_stage": None,
                "datacenters": [{"name": "north", "gpus": 256}],
                "links": [],
            },
            "tp: 256.*too many ranks for model.vocabulary = 270",
        ),
        ({"tp": 4}, r"datacenters\[0\].gpus: 4.*north needs 8 \(1 stages × 2 pipelines × tp = 4\)"),
        ({"tp": 0}, "tp: 0"),
        (
            {"tp": 64, "pipelines": 16, "model": {**TWO_DCS["model"], "hidden": 64, "heads": 64}},
            "pipelines: 16.*gives 2048 ranks; at most 1024",
        ),
        ({"device": "emulated", "times_ms": {"forward": 5, "backward": 10}}, "tp: 2.*1 on device emulated"),
        ({"devices": {"pipelines": [[0, 4], [1, 5]]}, "dc_of_stage": None}, "devices.*one device"),
        ({"recovery": {}}, "recovery.*not available with tp = 2"),
        ({"adapt": {}}, "adapt.*not available with tp = 2"),
        (
            {
                "prefill": {
                    "checkpoint": "m",
                    "latency": {"a_ms": 0, "b_ms": 1, "c_ms": 0},
                    "weight_budget_gb": 1,
                    "kv_budget_gb": 1,
                }
            },
            "prefill.*not available with tp = 2",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(**{**TWO_DCS, **changes})


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_has_no_ranks_to_a_stage_on_cuda() -> None:
    from engine.nn.tensor_parallel import (
        TpGroup,
    )  # here: its part of torch takes a second of every test process

    me = single_machine(job(**TWO_DCS, device="cuda"), run="x", log_dir="").ranks[0]
    with pytest.raises(InputError, match=r"tp: 2.*this build of torch has no NCCL"):
        TpGroup(me, 2, store=None, device=Gpu())


def test_workers_that_swap_compute_alone() -> None:
    with pytest.raises(InputError, match=r"tp: 2.*a worker computes alone"):
        swap_jobs.job(tp=2)
