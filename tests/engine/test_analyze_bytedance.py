"""`meridian analyze` of ByteDance's traces: the authors' own figures, closed forms and properties."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.analyze.formats import load
from engine.analyze.result import analyze
from engine.schedule.scenario import Scenario
from engine.simulate import simulate
from tests.engine.op_traces import from_spans, last_end, op, two_stages, write

TRACES = Path(__file__).parents[1] / "traces" / "bytedance"
DECOMPOSED = (("op", "optype"), ("stage", "stage"), ("replica", "dp_rank"))
# The authors store some figures in 32 bits, whose last place is 6e-8.
ROUNDING = 1e-7


def analysed(path: Path, meta: Path | None = None) -> dict[str, Any]:
    return analyze(load(path, meta)).as_dict()


@pytest.fixture(scope="module", params=["AR", "ST"])
def job(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The name of a job, and what is said of its trace."""
    name: str = request.param
    return name, analysed(TRACES / f"trace-{name}.parquet", TRACES / f"meta-{name}.yaml")


def printed(kind: str, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((TRACES / f"{kind}-{name}.json").read_text())
    return document


def test_the_authors_figures_of_a_job_come_out(job: tuple[str, dict[str, Any]]) -> None:
    name, ours = job
    theirs = printed("result", name)
    assert ours["slowdown"] == pytest.approx(theirs["blocking_slowdown"], rel=ROUNDING)
    assert ours["launch_slowdown"] == pytest.approx(theirs["launch_slowdown"], rel=ROUNDING)
    for what, field in (("step_s", "base"), ("no_delay_step_s", "nodelay"), ("ideal_step_s", "noblk")):
        mean = np.mean(list(theirs[f"step_t_{field}"].values()))
        assert ours[what] == pytest.approx(mean, rel=ROUNDING)
    for what, field in DECOMPOSED:
        wanted = theirs[f"blocking_decompose_by_{field}"]
        assert ours[f"slowdown_by_{what}"] == pytest.approx(wanted, rel=ROUNDING)


def test_the_authors_figures_of_each_step_come_out(job: tuple[str, dict[str, Any]]) -> None:
    name, ours = job
    theirs = printed("result", name)
    steps = {str(step["step"]): step for step in ours["by_step"]}
    assert set(steps) == set(theirs["step_t_base"])
    for number, step in steps.items():
        for what, field in (("step_s", "base"), ("no_delay_step_s", "nodelay"), ("ideal_step_s", "noblk")):
            assert step[what] == pytest.approx(theirs[f"step_t_{field}"][number], rel=ROUNDING)
        slow = step["no_delay_step_s"] / step["ideal_step_s"]
        assert slow == pytest.approx(theirs["blocking_step_slowdown"][number], rel=ROUNDING)
        launch = step["step_s"] / step["no_delay_step_s"]
        assert launch == pytest.approx(theirs["launch_step_slowdown"][number], rel=ROUNDING)
        for what, field in DECOMPOSED:
            wanted = theirs[f"blocking_decompose_by_{field}_per_step"][number]
            assert step[f"slowdown_by_{what}"] == pytest.approx(wanted, rel=ROUNDING)


def test_the_shares_of_the_slowest_workers_and_the_last_stage_come_out(
    job: tuple[str, dict[str, Any]],
) -> None:
    name, ours = job
    for what, kind in (("slowest_workers", "mw"), ("last_stage", "ms")):
        theirs = printed(kind, name)
        for field, theirs_field in (
            ("with_only_s", "tadd"),
            ("without_s", "trem"),
            ("added", "add"),
            ("explained", "rem"),
        ):
            assert ours[what][field] == pytest.approx(theirs[theirs_field], rel=ROUNDING)


def test_a_worker_is_as_slow_as_the_least_of_its_replica_and_its_stage(
    job: tuple[str, dict[str, Any]],
) -> None:
    _, ours = job
    for worker, slowdown in ours["slowdown_by_worker"].items():
        replica, stage = worker.split(",")
        assert slowdown == min(ours["slowdown_by_replica"][replica], ours["slowdown_by_stage"][stage])
    assert ours["workers"] == len(ours["slowdown_by_worker"])


def test_two_stages_take_what_the_formula_says(tmp_path: Path) -> None:
    rows = two_stages((3.0, 3.0), (5.0, 5.0), transfer=0.5, microbatches=4)
    ours = analysed(write(rows, tmp_path / "trace.parquet"))
    # One microbatch fills and one drains the pipeline; each of the four pays both ops and both transfers.
    step_s = 3 + 5 + 4 * (3 + 5 + 2 * 0.5) + 1
    assert ours["step_s"] == pytest.approx(step_s)
    assert ours["no_delay_step_s"] == pytest.approx(step_s)
    assert ours["ideal_step_s"] == pytest.approx(step_s)
    assert ours["utilization"] == pytest.approx(4 * (3 + 5) / step_s)
    assert ours["bubbles"] == pytest.approx({"fraction": 1 - 4 * 8 / step_s, "total_s": 2 * (step_s - 4 * 8)})
    path = ours["critical_path"]
    assert path[0]["start_s"] == 0
    assert path[-1]["op"] == "optimizer"
    assert path[-1]["end_s"] == pytest.approx(step_s)
    assert all(a["end_s"] == b["start_s"] for a, b in pairwise(path))


def test_equal_durations_have_no_slowdown(tmp_path: Path) -> None:
    ours = analysed(write(two_stages((2.0, 2.0), (4.0, 4.0), 0.25, 8), tmp_path / "trace.parquet"))
    assert ours["slowdown"] == pytest.approx(1)
    assert ours["launch_slowdown"] == pytest.approx(1)
    for what in ("op", "stage", "replica", "worker"):
        assert list(ours[f"slowdown_by_{what}"].values()) == pytest.approx(
            [1] * len(ours[f"slowdown_by_{what}"])
        )


@pytest.mark.parametrize("slower", [0.1, 0.5, 3.0])
def test_a_slower_worker_moves_the_ideal_by_the_mean(tmp_path: Path, slower: float) -> None:
    forward, backward, transfer, microbatches = 2.0, 4.0, 0.25, 4
    rows = two_stages(
        (forward, forward * (1 + slower)), (backward, backward * (1 + slower)), transfer, microbatches
    )
    ours = analysed(write(rows, tmp_path / "trace.parquet"))
    both = (forward + backward) * (1 + slower / 2)
    ideal_s = both + microbatches * (both + 2 * transfer) + 1
    assert ours["ideal_step_s"] == pytest.approx(ideal_s)
    assert ours["no_delay_step_s"] == pytest.approx(last_end(rows))
    assert ours["slowdown"] == pytest.approx(last_end(rows) / ideal_s)
    assert ours["slowdown_by_stage"]["1"] > ours["slowdown_by_stage"]["0"]
    assert ours["slowest_workers"]["workers"] == ["0,1"]


def test_delays_between_ops_are_launch_delays(tmp_path: Path) -> None:
    rows = two_stages((2.0, 2.0), (4.0, 4.0), 0.25, 4)
    late = [row | {"start_ts": row["start_ts"] + 7} if row["optype"] == "optimizer" else row for row in rows]
    ours = analysed(write(late, tmp_path / "trace.parquet"))
    assert ours["step_s"] == pytest.approx(last_end(rows) + 7)
    assert ours["no_delay_step_s"] == pytest.approx(last_end(rows))
    assert ours["launch_slowdown"] == pytest.approx((last_end(rows) + 7) / last_end(rows))
    assert ours["slowdown"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("policy", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)]
)
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("pipelines", [1, 3])
def test_a_simulated_schedule_is_replayed_as_it_was(
    tmp_path: Path, policy: str, chunks: int, stages: int, pipelines: int
) -> None:
    if stages == 1 and chunks > 1:
        policy, chunks = "1f1b", 1
    scenario = {
        "stages": stages,
        "pipelines": pipelines,
        "microbatches": 8,
        "times": {"forward": 4.0, "backward": 8.0},
        "policy": policy,
    } | ({"chunks": chunks} if chunks > 1 else {})
    done = simulate(Scenario(**scenario))
    assert done.timeline is not None
    ours = analysed(write(from_spans(done.spans(), stages, chunks), tmp_path / "trace.parquet"))
    assert ours["step_s"] == pytest.approx(done.makespan)
    assert ours["no_delay_step_s"] == pytest.approx(done.makespan)
    assert ours["slowdown"] == pytest.approx(1)
    assert ours["utilization"] == pytest.approx(done.timeline.utilization())
    assert ours["layout"] == {"replicas": pipelines, "stages": stages, "chunks": chunks, "gpus": None}


@pytest.mark.parametrize("first_is_missing", [False, True])
def test_transfers_at_the_ends_of_the_model_reach_nobody(tmp_path: Path, first_is_missing: bool) -> None:
    """Of interleaved chunks every op has a send and a receive; the very first receive may be missing."""
    scenario = {"stages": 4, "pipelines": 2, "microbatches": 8, "policy": "interleaved", "chunks": 2}
    done = simulate(Scenario(**scenario, times={"forward": 4.0, "backward": 8.0}))
    rows = from_spans(done.spans(), 4, 2, no_ops=True)
    if first_is_missing:
        lost = [row for row in rows if row["stage"] == 0 and row["optype"] == "forward-recv"]
        rows = [row for row in rows if row not in lost or row["seq_id"] > 0]
        rows = [row | {"seq_id": row["seq_id"] - 1} if row in lost else row for row in rows]
    ours = analysed(write(rows, tmp_path / "trace.parquet"))
    assert ours["no_delay_step_s"] == pytest.approx(done.makespan)
    assert ours["slowdown"] == pytest.approx(1)


def test_receives_that_were_never_launched_do_not_count(tmp_path: Path) -> None:
    """Profilers record an end's missing neighbour as an op, before the first compute or after the last."""
    rows = two_stages((2.0, 2.0), (4.0, 4.0), 0.25, 4)
    plain = analysed(write(rows, tmp_path / "plain.parquet"))
    after = last_end(rows)
    extra = [op("forward-recv", 1, after, 0.1, 4), op("backward-send", 0, 0.0, 0.1, 0)]
    ours = analysed(write([*rows, *extra], tmp_path / "extra.parquet"))
    assert ours["no_delay_step_s"] == pytest.approx(plain["no_delay_step_s"])


def test_collectives_wait_for_the_last_replica(tmp_path: Path) -> None:
    """Two replicas of one stage: the slower one's gradients make both wait; each step ends 1 s later."""
    rows = []
    for replica, backward in ((0, 4.0), (1, 10.0)):
        mine = [
            op("params-all-gather", 0, 0.0, 1.0, mc=0),
            op("forward-compute", 0, 1.0, 2.0, mc=0, gmc=0, mb_id=0),
            op("backward-compute", 0, 3.0, backward, mc=0, gmc=0, mb_id=0),
            op("grads-reduce-scatter", 0, 3.0 + backward, 13.5 - 3.0 - backward, mc=0),
            op("optimizer-clip-main-grad", 0, 13.5, 0.5),
            op("optimizer", 0, 14.0, 1.0),
        ]
        rows += [row | {"dp_rank": replica, "rank": replica} for row in mine]
    ours = analysed(write(rows, tmp_path / "trace.parquet"))
    assert ours["no_delay_step_s"] == pytest.approx(15)
    assert ours["ideal_step_s"] == pytest.approx(1 + 2 + 7 + 0.5 + 0.5 + 1)
    assert ours["slowdown_by_replica"]["1"] == pytest.approx(15 / 12)
    assert ours["slowdown_by_op"]["grads-reduce-scatter"] == pytest.approx(1)
    assert ours["slowdown_by_op"]["backward-compute"] == pytest.approx(15 / 12)


def test_a_step_that_lacks_ops_is_left_out_and_said(tmp_path: Path) -> None:
    rows = two_stages((2.0, 2.0), (4.0, 4.0), 0.25, 4)
    torn = [row | {"step": 2} for row in rows[:-3]]
    ours = analysed(write([*rows, *torn], tmp_path / "trace.parquet"))
    assert [step["step"] for step in ours["by_step"]] == [1]
    assert "Left out: 1 of 2 steps" in ours["notes"][0]
