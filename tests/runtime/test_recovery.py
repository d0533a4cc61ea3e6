"""Runs that lose a rank, a machine, a link or a data centre go on by themselves, as if nothing had been."""

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.job.checkpoint.manifest import find, newest_of_run
from tests.runtime.jobs import Run, job
from tests.runtime.machines import Machines
from tests.runtime.test_trackers import scalars

STEPS = 12
JOB = {"dtype": "fp64", "steps": STEPS}
SPLIT = [(0, 1), (3, 4), (2,), (5,)]  # north on two machines, south on two
ONE_PIPELINE = {"pipelines": 1, "datacenters": [{"name": "north", "gpus": 2}, {"name": "south", "gpus": 1}]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}

    def result(**changes: Any) -> dict[str, Any]:
        if repr(changes) not in known:
            known[repr(changes)] = Run(job(**changes), str(tmp_path_factory.mktemp("log"))).result()
        return known[repr(changes)]

    return result


def check_exactly_once(events: list[dict[str, Any]], of: Any, recoveries: list[dict[str, Any]]) -> None:
    """Every microbatch of every iteration that counts was done once, as the spans tell."""
    first_of_attempt = {row["attempt"]: row["iteration"] for row in recoveries}
    cut = next((row for row in recoveries if "layout" in row), None)  # went over to a smaller layout
    seen: dict[tuple[int, int], dict[str, Any]] = {}
    for event in (e for e in events if e["kind"] == "spans"):
        later = [step for attempt, step in first_of_attempt.items() if attempt > event["attempt"]]
        if all(event["iteration"] < step for step in later):  # else it was done again, and does not count
            assert seen.setdefault((event["rank"], event["iteration"]), event) is event
    for (rank, iteration), event in seen.items():
        done = Counter(
            (s["op"], s["microbatch"]) for s in event["spans"] if s["track"] == "gpu" and s["op"] in "FB"
        )
        is_cut = cut is not None and event["attempt"] >= cut["attempt"]
        microbatches = cut["layout"]["microbatches"] if is_cut else of.cell.microbatches
        expected = {(op, m): 1 for op in ("F", "B") for m in range(microbatches)}
        assert done == expected, f"rank {rank}, iteration {iteration}"
    for rank in range(of.cell.world_size):
        steps = cut["iteration"] if cut is not None and rank in cut["left"] else of.optimizer.steps
        check_lost_with_killed({i for r, i in seen if r == rank}, steps, set(first_of_attempt.values()))


def check_lost_with_killed(reported: set[int], steps: int, begun_again: set[int]) -> None:
    """Only the last iterations before a run began again may be missing of `steps`.

    A process that is killed takes with it what it had not reported, more of it on a slow machine.
    """
    missing = set(range(steps)) - reported
    assert all(i + 1 in missing | begun_again for i in missing), (sorted(missing), begun_again)


def check_same(result: dict[str, Any], whole: dict[str, Any]) -> None:
    assert result["params_sha256"] == whole["params_sha256"]
    assert result["losses"] == whole["losses"]
    assert result["grad_norms"] == whole["grad_norms"]


ONE_STAGE = {
    "stages": 1,
    "dc_of_stage": None,
    "datacenters": [{"name": "north", "gpus": 2}],
    "links": [],
    "policy": "1f1b",
}


def test_a_rank_that_hangs_is_noticed_where_only_its_host_can(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    """Of one stage in one data centre ranks meet in their all-reduce alone, which waits for good."""
    of = job(**JOB, **ONE_STAGE, recovery={})
    with Machines(of, tmp_path, [range(2)]) as run:
        run.at_step(3)
        run.kill_rank(1, signal.SIGSTOP)
        result = run.result()
    check_same(result, undisturbed(**JOB, **ONE_STAGE))
    (recovery,) = result["recoveries"]
    assert recovery["failed"] == "rank"
    assert "rank 1 (north p1s0): silent for" in recovery["detail"]
    assert recovery["detected_s"] >= 4.5


def test_a_rank_that_hangs_fails_a_run_that_does_not_recover(tmp_path: Path) -> None:
    with Machines(job(**JOB, **ONE_STAGE), tmp_path, [range(2)]) as run:
        run.at_step(3)
        run.kill_rank(1, signal.SIGSTOP)
        run.wait(lambda: any(e["state"] == "failed" for e in run.of_kind("rank")), "the failure")
        (failed,) = [e for e in run.of_kind("rank") if e["state"] == "failed"]
    assert failed["rank"] == 1
    assert failed["detail"].startswith("silent for")


@pytest.mark.parametrize("victim", [0, pytest.param(4, marks=pytest.mark.long)])
def test_killed_rank_costs_time_only(
    victim: int, tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    of = job(**JOB, recovery={}, tracking={"tensorboard": str(tmp_path / "board")})
    with Machines(of, tmp_path, [range(6)]) as run:
        run.at_step(3)
        run.kill_rank(victim)
        result = run.result()
    check_same(result, undisturbed(**JOB))
    losses = [(step, value) for tag, step, _, value in scalars(tmp_path / "board") if tag == "loss/train"]
    assert losses == [(i + 1, pytest.approx(loss, rel=1e-6)) for i, loss in enumerate(result["losses"])]
    assert result["bits_per_byte"] == undisturbed(**JOB)["bits_per_byte"]
    assert [e["iteration"] for e in run.of_kind("step")] == list(range(STEPS)), "each told once"
    (recovery,) = result["recoveries"]
    assert (recovery["failed"], recovery["attempt"]) == ("rank", 2)
    assert f"rank {victim} " in recovery["detail"]
    assert recovery["from"] in ("memory", "peer")
    assert recovery["detected_s"] < 5
    assert recovery["iteration"] >= 3
    check_exactly_once(run.events, of, result["recoveries"])


@pytest.mark.long
def test_without_a_replica_the_machine_keeps_the_state(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    of = job(**JOB, **ONE_PIPELINE, recovery={})
    with Machines(of, tmp_path, [range(3)]) as run:
        run.at_step(3)
        run.kill_rank(1)
        result = run.result()
    check_same(result, undisturbed(**JOB, **ONE_PIPELINE))
    assert [row["from"] for row in result["recoveries"]] == ["memory"]
    check_exactly_once(run.events, of, result["recoveries"])


@pytest.mark.long
def test_lost_machine_takes_its_stages_from_replicas(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    of = job(**JOB, recovery={})
    with Machines(of, tmp_path, SPLIT) as run:
        run.at_step(3)
        run.kill_machines(1)
        result = run.result()
    check_same(result, undisturbed(**JOB))
    (recovery,) = result["recoveries"]
    assert (recovery["failed"], recovery["from"]) == ("node", "peer")
    assert "node-1" in recovery["detail"]
    check_exactly_once(run.events, of, result["recoveries"])


@pytest.mark.long
def test_machine_of_the_first_rank_is_lost(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    with Machines(job(**JOB, recovery={}), tmp_path, SPLIT) as run:
        run.at_step(3)
        run.kill_machines(0)
        result = run.result()
    whole = undisturbed(**JOB)
    assert result["params_sha256"] == whole["params_sha256"]
    events = {e["iteration"]: e["loss"] for e in run.of_kind("step")}
    assert [events[i] for i in range(STEPS)] == whole["losses"]


@pytest.mark.long
def test_lost_data_centre_goes_back_to_the_checkpoint(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 3}
    of = job(**JOB, recovery={}, checkpoint=saves)
    with Machines(of, tmp_path, SPLIT) as run:
        run.wait(lambda: any(e["step"] >= 3 for e in run.of_kind("checkpoint")), "a checkpoint")
        run.kill_machines(2, 3)
        result = run.result()
    check_same(result, undisturbed(**JOB))
    (recovery,) = result["recoveries"]
    assert (recovery["failed"], recovery["from"]) == ("datacenter", "checkpoint")
    assert "south" in recovery["detail"]
    assert recovery["iteration"] % 3 == 0
    assert result["checkpoints"]["last_step"] == STEPS


@pytest.mark.long
def test_cut_link_is_noticed_within_5_s(tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]) -> None:
    of = job(**{**JOB, "steps": 40}, recovery={})
    with Machines(of, tmp_path, [range(6)]) as run:
        run.at_step(3)
        run.cut("north", "south", 5.5)
        result = run.result()
    check_same(result, undisturbed(**{**JOB, "steps": 40}))
    (recovery,) = result["recoveries"]
    assert recovery["failed"] == "link"
    assert "north → south" in recovery["detail"] or "south → north" in recovery["detail"]
    assert 4 <= recovery["detected_s"] < 20, "by silence; the bar, 5 s, is shown by benchmarks/recovery.py"


def test_a_run_whose_attempts_are_used_up_fails_with_the_ranks_own_last_line(tmp_path: Path) -> None:
    with Machines(job(**{**JOB, "steps": 10**6}, recovery={"attempts": 1}), tmp_path, [range(6)]) as run:
        for count in (1, 2):
            run.at_step(3 * count)
            run.kill_rank(4)
            if count == 1:
                run.wait(lambda: bool(run.of_kind("recovery")), "the recovery")
        assert run.groups[0].wait(30)
    ended = {e["rank"]: (e["state"], e["exit_code"]) for e in run.of_kind("rank")}
    assert ended[4] == ("failed", -9)
    assert {state for rank, (state, _) in ended.items() if rank != 4} == {"stopped"}


def test_a_loss_that_goes_wrong_is_not_tried_again(tmp_path: Path) -> None:
    of = job(lr=1000.0, steps=200, recompute=False, recovery={})
    with Machines(of, tmp_path, [range(6)]) as run:
        assert run.groups[0].wait(60)
    assert not run.of_kind("recovery")
    failed = [e for e in run.of_kind("rank") if e["state"] == "failed"]
    assert [e["rank"] for e in failed] == [0]
    assert "must be finite" in failed[0]["detail"]


def check_close(result: dict[str, Any], whole: dict[str, Any]) -> None:
    """The same sums in another order."""
    assert result["losses"] == pytest.approx(whole["losses"], rel=1e-9)
    assert result["grad_norms"] == pytest.approx(whole["grad_norms"], rel=1e-9)


@pytest.mark.long
def test_a_machine_that_does_not_return_leaves_fewer_pipelines(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    of = job(**JOB, recovery={"wait_s": 6})
    with Machines(of, tmp_path, SPLIT) as run:
        run.at_step(3)
        run.kill_machines(1, away_s=1000)
        result = run.result()
    check_close(result, undisturbed(**JOB))
    (recovery,) = result["recoveries"]
    assert (recovery["from"], recovery["left"]) == ("memory", [3, 4, 5])
    assert "no message from node-1 for 6 s" in recovery["layout"]["why"]
    ended = {e["rank"]: e["state"] for e in run.of_kind("rank")}
    assert [ended[rank] for rank in (0, 1, 2, 5)] == ["finished"] * 3 + ["left"]
    check_exactly_once(run.events, of, result["recoveries"])


@pytest.mark.long
def test_fewer_stages_go_on_from_the_checkpoint(
    tmp_path: Path, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 3}
    of = job(**JOB, **ONE_PIPELINE, recovery={"wait_s": 6, "layers_per_gpu": 2}, checkpoint=saves)
    with Machines(of, tmp_path, [(0, 1), (2,)]) as run:
        run.wait(lambda: any(e["step"] >= 3 for e in run.of_kind("checkpoint")), "a checkpoint")
        run.kill_machines(1, away_s=1000)
        result = run.result()
    check_close(result, undisturbed(**JOB, **ONE_PIPELINE))
    (recovery,) = result["recoveries"]
    assert (recovery["from"], recovery["left"], recovery["layout"]["stages"]) == ("checkpoint", [2], 2)
    check_exactly_once(run.events, of, result["recoveries"])


@pytest.mark.long
def test_too_few_nodes_fail_the_run_and_the_checkpoint_stays(tmp_path: Path) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 1}
    of = job(**{**JOB, "steps": 10**6}, **ONE_PIPELINE, recovery={"wait_s": 6}, checkpoint=saves)
    with Machines(of, tmp_path, [(0, 1), (2,)]) as run:
        run.wait(lambda: bool(run.of_kind("checkpoint")), "a checkpoint")
        run.kill_machines(1, away_s=1000)
        assert run.groups[0].wait(30)
    failed = [e for e in run.of_kind("rank") if e["state"] == "failed" and e["rank"] == 0]
    assert "no message from node-1 for 6 s" in failed[0]["detail"]
    assert "2 GPUs are left (north 2), which cannot hold a pipeline of 3 layers" in failed[0]["detail"]
    saved = [e for e in run.of_kind("checkpoint") if e["state"] == "saved"]
    # The one that was being saved when the machine was killed may be said to have failed after it.
    assert find(saved[-1]["where"]).manifest.step == saved[-1]["step"]


@pytest.mark.long
def test_without_the_first_machine_the_others_say_why_they_end(tmp_path: Path) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 1}
    of = job(**{**JOB, "steps": 10**6}, **ONE_PIPELINE, recovery={"wait_s": 6}, checkpoint=saves)
    with Machines(of, tmp_path, [(0, 1), (2,)]) as run:
        run.wait(lambda: bool(run.of_kind("checkpoint")), "a checkpoint")
        run.kill_machines(0, away_s=1000)
        assert run.groups[1].wait(30)
    ends = [e for e in run.of_kind("rank") if e["state"] in ("failed", "stopped") and e["rank"] == 2]
    assert [e["state"] for e in ends] == ["failed"]
    assert "no message from" in ends[0]["detail"]
    assert ends[0].get("exit_code") is None, "it was killed for another's sake: the site may move the run"
    # The first machine took its last words with it: the last checkpoint it told of may be gone for newer.
    events = [e for e in run.of_kind("checkpoint") if e["state"] == "saved"]
    assert find(newest_of_run(events[-1]["where"])).manifest.step >= events[-1]["step"]


@pytest.mark.long
def test_stopped_while_it_waits_for_a_machine(tmp_path: Path) -> None:
    of = job(**{**JOB, "steps": 10**6}, recovery={})
    with Machines(of, tmp_path, SPLIT) as run:
        run.at_step(2)
        run.kill_machines(1, away_s=1000)
        run.wait(lambda: not run.groups[1].running(), "its end")
        run.groups[0].stop(1.0)
        ended = {e["rank"]: e["state"] for e in run.of_kind("rank")}
        assert {ended[0], ended[1]} == {"stopped"}
