"""Ranks start, report, fail and stop as a whole, and leave nothing behind."""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.errors import InputError
from engine.job.launch import Disturbance, LaunchSpec, single_machine
from engine.run.launcher import RankGroup
from tests.demo.harness import wait_for
from tests.events import as_dicts
from tests.ports import free_port
from tests.runtime.jobs import Run, job
from tests.waiting import LIMIT_S, has_ended, until

ENDLESS = {"steps": 1_000_000}


def pids(run: Run) -> set[int]:
    return {event["pid"] for event in run.of_kind("rank") if event["pid"]}


def alive(processes: set[int]) -> set[int]:
    return {pid for pid in processes if not has_ended(pid)}


def test_events_of_a_run(tmp_path: Path) -> None:
    run = Run(job(steps=4), str(tmp_path))
    result = run.result()
    assert run.events[-1]["kind"] == "result"
    states = {(e["rank"], e["state"]) for e in run.of_kind("rank")}
    assert states == {(rank, s) for rank in range(6) for s in ("starting", "ready", "running", "finished")}
    assert [e["iteration"] for e in run.of_kind("step")] == [0, 1, 2, 3]
    spans = run.of_kind("spans")
    assert sorted((e["rank"], e["iteration"]) for e in spans) == [(r, i) for r in range(6) for i in range(4)]
    transfers = [s for e in spans for s in e["spans"] if s["track"] == "wan"]
    # one activation and one gradient per microbatch, pipeline and iteration over the one WAN hop
    assert len(transfers) == 2 * 3 * 2 * 4
    assert sum(s["bytes"] for s in transfers) == sum(row["bytes"] for row in result["wan"])
    assert all(s["start"] <= s["end"] <= s["arrives"] for s in transfers)
    ops = [s for e in spans if e["rank"] == 0 for s in e["spans"] if s["track"] == "gpu"]
    assert all(a["end"] <= b["start"] + 1e-5 for a, b in itertools.pairwise(ops)), "one op at a time"
    for rank in range(6):
        lines = [event["line"] for event in run.of_kind("log") if event["rank"] == rank]
        assert lines[0].startswith(f"Rank {rank} of 6, in ")
        assert lines[-1].startswith("Iteration 4 of 4")
        assert (tmp_path / f"rank-{rank}.log").read_text().splitlines() == lines


def test_killed_rank_fails_the_run_and_takes_all_ranks_along(tmp_path: Path) -> None:
    run = Run(job(**ENDLESS), str(tmp_path))
    assert run.training.wait(LIMIT_S)
    victim = next(e["pid"] for e in run.of_kind("rank") if e["rank"] == 4)
    assert os.getsid(victim) == os.getsid(0), "what gives way does so within its session only (autogroup)"
    assert psutil.Process(victim).environ()["THP_MEM_ALLOC_ENABLE"] == "1"
    os.kill(victim, signal.SIGKILL)
    assert run.group.wait(LIMIT_S)
    failed = [e for e in run.of_kind("rank") if e["state"] == "failed"]
    assert [(e["rank"], e["exit_code"]) for e in failed] == [(4, -9)]
    assert failed[0]["detail"].startswith("killed by SIGKILL, perhaps because the machine ran out of memory")
    assert "Give it more memory" in failed[0]["detail"]
    assert not alive(pids(run))
    assert not run.of_kind("result")


def test_failing_rank_gives_its_own_last_line_though_the_disk_of_its_log_is_full(tmp_path: Path) -> None:
    if Path("/dev/full").exists():
        (tmp_path / "rank-0.log").symlink_to("/dev/full")
    run = Run(job(lr=1000.0, steps=200, recompute=False), str(tmp_path))
    assert run.group.wait(LIMIT_S)
    failed = [e for e in run.of_kind("rank") if e["state"] == "failed"]
    assert [e["rank"] for e in failed] == [0], "; ".join(
        f"{e['rank']} {e['exit_code']} {e['detail']}" for e in failed
    )
    assert "must be finite" in failed[0]["detail"]


def test_two_nodes_stopped_one_after_the_other_have_both_stopped(tmp_path: Path) -> None:
    """All ranks of the second end at once for having lost the first's; it is told to stop a second later."""
    port = free_port()
    spec = dataclasses.replace(
        single_machine(job(**ENDLESS), run="test", log_dir=""), rendezvous_port=port, secret="s" * 32
    )
    events: list[dict[str, Any]] = []
    north, south = (
        RankGroup(dataclasses.replace(spec, local=local, log_dir=str(tmp_path / name)), as_dicts(events))
        for name, local in (("north", (0, 1, 3, 4)), ("south", (2, 5)))
    )
    try:
        north.start()
        south.start()
        wait_for("a step", lambda: any(event["kind"] == "step" for event in events), 60, every=0.05)
        ranks_of_south = {e["pid"] for e in events if e["kind"] == "rank" and e["rank"] in (2, 5)}
        with ThreadPoolExecutor() as beside:
            stopping = beside.submit(north.stop, 2.0)
            wait_for("south's ranks to end", lambda: not alive(ranks_of_south), 20, every=0.01)
            assert south.running(), "its host waits for what it may be told"
            south.stop(2.0)
            stopping.result(20)
    finally:
        north.stop(0.0)
        south.stop(0.0)
    ended = {e["rank"]: e["state"] for e in events if e["kind"] == "rank"}
    assert ended == dict.fromkeys(range(6), "stopped")


@pytest.mark.long
def test_stop_leaves_no_process(tmp_path: Path) -> None:
    run = Run(job(**ENDLESS), str(tmp_path))
    assert run.training.wait(LIMIT_S)
    run.group.stop(3.0)
    assert not run.group.running()
    assert not alive(pids(run))
    assert {e["state"] for e in run.of_kind("rank") if e["state"] in ("failed", "stopped")} == {"stopped"}


@pytest.mark.long
def test_ranks_die_with_a_killed_owner(tmp_path: Path) -> None:
    script = (
        "import sys, time; from tests.runtime.jobs import Run, job\n"
        f"run = Run(job(steps=1000000), {str(tmp_path)!r}); run.training.wait({LIMIT_S})\n"
        "print(*{e['pid'] for e in run.of_kind('rank')}, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        ranks = {int(pid) for pid in owner.stdout.readline().split()}
        assert len(ranks) == 6
        owner.kill()
    until(lambda: not alive(ranks))


def test_launch_spec_survives_json() -> None:
    slower = Disturbance(
        op_factor=((1, "F", 2.0),), gpu_factor=((0, 2, 1.3),), link_factor=((1, 2.0),), since=4
    )
    spec = single_machine(job(), run="7", log_dir="/x", disturbance=slower)
    assert LaunchSpec.from_json(spec.to_json()) == spec
    with pytest.raises(InputError, match="launch spec"):
        LaunchSpec.from_json("{}")


def test_stopped_before_the_ranks_exist_ends_at_once(tmp_path: Path) -> None:
    run = Run(job(**ENDLESS), str(tmp_path))
    run.group.stop(grace_s=30)  # its host imports for a second or more
    assert not run.group.running()
    assert {(e["rank"], e["state"]) for e in run.of_kind("rank")} == {(rank, "stopped") for rank in range(6)}
