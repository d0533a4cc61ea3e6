"""Emulated ops last as their own profile says; a delay in one op or link spreads as the simulator says."""

import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from engine.runtime.device import CpuDevice, EmulatedDevice
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
CLOCK_S = 0.005  # ranks tell the time by clocks that each has set once


def test_an_op_begins_when_its_inputs_are_there_and_the_one_before_is_over() -> None:
    overruns: list[float] = []
    device = EmulatedDevice(overruns.append)
    since = time.monotonic()
    first = device.begin(since)
    assert first == since
    time.sleep(0.004)  # the host is late, or computes
    end = device.end(first, 0.02)
    assert end == first + 0.02 <= time.monotonic()
    time.sleep(0.004)  # it wakes late for the next one, whose inputs have been there
    second = device.begin(since)
    assert second == end
    assert device.end(second, 0.02) == second + 0.02
    waited = time.monotonic()
    assert device.begin(waited) == waited, "the GPU was free before"
    assert not overruns


def test_an_op_whose_computation_takes_longer_ends_with_it() -> None:
    overruns: list[float] = []
    device = EmulatedDevice(overruns.append)
    start = device.begin(time.monotonic())
    time.sleep(0.02)
    end = device.end(start, 0.005)
    assert start + 0.02 <= end <= time.monotonic()
    assert overruns == [pytest.approx(end - start - 0.005, abs=0.01)]
    assert device.begin(start) == end, "what is late is not made up for"
    assert CpuDevice().begin(0.0) >= end, "where nothing is emulated an op begins when the host begins it"


def test_no_op_of_a_run_begins_before_the_one_before_is_over_or_its_message_is_there(tmp_path: Path) -> None:
    of = job(**{**EMULATED, "sharing": "temporal", "policy": "atlas", "steps": 3})
    _, run = measured(of, tmp_path)
    spans = [(e["iteration"], s) for e in run.of_kind("spans") for s in e["spans"]]
    begins = {
        (iteration, s["pipeline"], s["stage"], s["op"], s["microbatch"]): s["start"]
        for iteration, s in spans
        if s.get("op") in ("F", "B")
    }
    for pipeline in range(of.pipelines):
        for stage in range(of.stages):
            mine = [
                (s["start"], s["end"])
                for _, s in spans
                if s["track"] == "gpu" and (s["pipeline"], s["stage"]) == (pipeline, stage)
            ]
            assert all(end <= start + CLOCK_S for (_, end), (start, _) in pairwise(sorted(mine)))
    crossed = [(iteration, s) for iteration, s in spans if s["track"] == "wan"]
    assert len(crossed) == 3 * 2 * of.pipelines * of.microbatches
    for iteration, s in crossed:
        op = "F" if s["payload"] == "activation" else "B"
        begin = begins[iteration, s["pipeline"], s["to_stage"], op, s["microbatch"]]
        assert s["arrives"] <= begin + CLOCK_S


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
