"""Emulated ops last as their own profile says; a delay in one op or link spreads as the simulator says."""

from itertools import pairwise
from pathlib import Path

import pytest

from engine.job.job import TrainJob
from engine.job.launch import Disturbance
from engine.job.predict import predict, schedule_of
from engine.nn import device as device_module
from engine.nn.device import CpuDevice, EmulatedDevice
from engine.schedule.scenario import Scenario, Times
from engine.simulate import time_schedule
from tests.runtime.jobs import Run, job

EMULATED = {
    "device": "emulated",
    "times_ms": {"forward": 20, "recompute": 20, "backward": 40},
    "recompute": None,
    "steps": 6,
    "activation_bytes": 1_000_000,
    "policy": "varuna",
    "sharing": "spatial",
    "links": [{"between": ["north", "south"], "latency_ms": 10, "bandwidth_gbps": 0.5}],
}
CLOCK_S = 0.005  # ranks tell the time by clocks that each has set once


class Host:
    """The host's clock, which only the test and who sleeps move on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    clock = Host()
    monkeypatch.setattr(device_module, "time", clock)
    return clock


def test_an_op_begins_when_its_inputs_are_there_and_the_one_before_is_over(host: Host) -> None:
    overruns: list[float] = []
    device = EmulatedDevice(overruns.append)
    since = host.now
    host.sleep(1.0)  # it wakes late
    first = device.begin(since)
    host.sleep(2.0)  # it computes
    assert (first, device.end(first, 20.0)) == (since, since + 20.0)
    assert host.now == since + 20.0, "the op is not over for the host either"
    host.sleep(1.0)  # it wakes late for the next one, whose inputs have been there
    second = device.begin(since)
    assert (second, device.end(second, 20.0)) == (since + 20.0, since + 40.0)
    assert device.begin(since + 50.0) == since + 50.0, "the GPU was free before"
    assert not overruns


def test_an_op_whose_computation_takes_longer_ends_with_it(host: Host) -> None:
    overruns: list[float] = []
    device = EmulatedDevice(overruns.append)
    start = device.begin(host.now)
    host.sleep(20.0)
    assert device.end(start, 5.0) == start + 20.0
    assert overruns == [15.0]
    assert device.begin(start) == start + 20.0, "what is late is not made up for"
    assert CpuDevice().begin(0.0) == host.now, (
        "where nothing is emulated an op begins when the host begins it"
    )


def test_no_op_of_a_run_begins_before_the_one_before_is_over_or_its_message_is_there(tmp_path: Path) -> None:
    of = job(**{**EMULATED, "sharing": "temporal", "policy": "atlas", "steps": 3})
    _, run = measured(of, tmp_path)
    spans = [(e["iteration"], s) for e in run.of_kind("spans") for s in e["spans"]]
    begins = {
        (iteration, s["pipeline"], s["stage"], s["op"], s["microbatch"]): s["start"]
        for iteration, s in spans
        if s.get("op") in ("F", "B")
    }
    for pipeline in range(of.cell.pipelines):
        for stage in range(of.cell.stages):
            mine = [
                (s["start"], s["end"])
                for _, s in spans
                if s["track"] == "gpu" and (s["pipeline"], s["stage"]) == (pipeline, stage)
            ]
            assert all(end <= start + CLOCK_S for (_, end), (start, _) in pairwise(sorted(mine)))
    crossed = [(iteration, s) for iteration, s in spans if s["track"] == "wan"]
    assert len(crossed) == 3 * 2 * of.cell.pipelines * of.cell.microbatches
    for iteration, s in crossed:
        op = "F" if s["payload"] == "activation" else "B"
        begin = begins[iteration, s["pipeline"], s["to_stage"], op, s["microbatch"]]
        assert s["arrives"] <= begin + CLOCK_S


def slower_op(of: TrainJob, stage: int, factor: float) -> float:
    """Simulated iteration in seconds where the forward of one stage is slower than planned."""
    times = Times(
        forward=[20.0 * (factor if s == stage else 1) for s in range(of.cell.stages)],
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
    op, run = measured(of, tmp_path / "op", Disturbance(op_factor=((1, "F", 5.0),)))
    lasted_of = {
        stage: min(
            s["end"] - s["start"]
            for e in run.of_kind("spans")
            for s in e["spans"]
            if s.get("op") == "F" and s["stage"] == stage
        )
        for stage in range(3)
    }
    assert {stage for stage, seconds in lasted_of.items() if seconds > 0.1 - 1e-5} == {1}
    link, _ = measured(of, tmp_path / "link", Disturbance(link_factor=((1, 8.0),)))
    base = predict(of).iteration_s
    # A machine that is busy adds to these; `python -m benchmarks.train` says by how much, side by side.
    assert plain >= base - CLOCK_S
    assert op >= slower_op(of, 1, 5.0) - CLOCK_S
    assert link >= slower_link(of, 8.0) - CLOCK_S
    assert slower_op(of, 1, 5.0) / base > 1.25, "the case must be able to tell"
    assert slower_link(of, 8.0) / base > 1.25, "the case must be able to tell"
