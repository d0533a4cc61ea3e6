"""Emulated ops last as their own profile says; a delay in one op or link spreads as the simulator says."""

from pathlib import Path
from statistics import median

import pytest

from engine.runtime.job import TrainJob
from engine.runtime.launch import Disturbance
from engine.runtime.predict import predict, schedule_of
from engine.schedule.scenario import Scenario, Times
from engine.simulate import time_schedule
from tests.runtime.jobs import Run, job

EMULATED = {
    "device": "emulated", "times_ms": {"forward": 20, "recompute": 20, "backward": 40}, "recompute": None,
    "steps": 6, "activation_bytes": 1_000_000, "policy": "varuna", "sharing": "spatial",
    "links": [{"between": ["north", "south"], "latency_ms": 10, "bandwidth_gbps": 0.5}],
}  # fmt: skip


def slower_op(of: TrainJob, stage: int, factor: float) -> float:
    """Simulated iteration in seconds where the forward of one stage is slower than planned."""
    times = Times(
        forward=[20.0 * (factor if s == stage else 1) for s in range(of.stages)],
        backward=40.0,
        recompute=20.0,
    )
    return predict(of, schedule=schedule_of(of), times=times).iteration_s


def slower_link(of: TrainJob, factor: float) -> float:
    scenario = of.scenario
    wan = [link.model_copy(update={"transfer": link.transfer * factor}) for link in scenario.wan]  # type: ignore[union-attr]
    return time_schedule(Scenario(**{**scenario.model_dump(), "wan": wan}), schedule_of(of)).makespan / 1e3


def measured(of: TrainJob, folder: Path, disturbance: Disturbance | None = None) -> tuple[float, Run]:
    run = Run(of, str(folder), disturbance)
    return run.result()["iteration_ms"]["median"] / 1e3, run


@pytest.mark.long
def test_delay_of_one_op_and_one_link_spreads_as_simulated(tmp_path: Path) -> None:
    of = job(**EMULATED)
    plain, run = measured(of, tmp_path / "plain")
    lasted = [s["end"] - s["start"] for e in run.of_kind("spans") for s in e["spans"] if s.get("op") == "F"]
    assert min(lasted) >= 0.020 - 1e-5
    assert median(lasted) == pytest.approx(0.020, rel=0.2)
    op, run = measured(of, tmp_path / "op", Disturbance(op_factor=((1, "F", 5.0),)))
    lasted_of = {
        stage: median(
            s["end"] - s["start"]
            for e in run.of_kind("spans")
            for s in e["spans"]
            if s.get("op") == "F" and s["stage"] == stage
        )
        for stage in range(3)
    }
    assert {stage for stage, seconds in lasted_of.items() if seconds > 0.05} == {1}
    link, _ = measured(of, tmp_path / "link", Disturbance(link_factor=((1, 8.0),)))
    base = predict(of).iteration_s
    assert op / plain == pytest.approx(slower_op(of, 1, 5.0) / base, rel=0.2)
    assert link / plain == pytest.approx(slower_link(of, 8.0) / base, rel=0.2)
    assert slower_op(of, 1, 5.0) / base > 1.25, "the case must be able to tell"
    assert slower_link(of, 8.0) / base > 1.25, "the case must be able to tell"
