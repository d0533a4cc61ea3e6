"""Runs that get another placement: the search, its costs, recovery with fewer GPUs, and whole runs."""

from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.job.adapt.better import better_placement
from engine.job.adapt.layouts import Conditions, conditions_of
from engine.job.adapt.links import move_s, stage_state_bytes
from engine.job.adapt.measured import LATENCY, LINK, of_rows, planned
from engine.job.adapt.replan import as_taken
from engine.job.adapt.sentences import moved
from engine.job.changed import changed
from engine.job.events.incidents import Deviation, LayoutChanged, TimedWork
from engine.job.job import TrainJob
from engine.job.launch import Disturbance, single_machine
from engine.job.planned import schedule_of
from engine.job.predict import predict
from engine.job.recovery.layout import Layout, change
from engine.job.recovery.smaller import smaller
from tests.runtime.jobs import Run, job
from tests.runtime.machines import Machines
from tests.runtime.test_moving import LINKS, MOVING, NAMES, NONE, factor
from tests.runtime.test_training_equals_single import reference

PLACED: dict[str, Any] = {
    **MOVING,
    "dc_of_stage": None,
    "sharing": None,
    "policy": "1f1b",
    "devices": {"pipelines": [[0, 1, 2], [3, 4, 5]]},  # north, north, west; west, south, south
}
PAIRS = [frozenset(NAMES.index(name) for name in link["between"]) for link in LINKS]


def placed(**changes: Any) -> TrainJob:
    return job(**{**PLACED, **changes})


def conditions(transfer: Any = (1, 1, 1), latency_ms: Any = (10, 10, 10), of_gpu: Any = None) -> Conditions:
    """Of the three links, in the order of LINKS."""
    return Conditions(
        of_gpu=of_gpu or {},
        transfer=dict(zip(PAIRS, map(float, transfer), strict=True)),
        latency_ms=dict(zip(PAIRS, map(float, latency_ms), strict=True)),
    )


def as_documented(of: TrainJob, network: Conditions, pipelines: list[list[int]]) -> TrainJob:
    """The job on other devices, whose document says what was measured of its links."""
    links = [
        {
            **link,
            "bandwidth_gbps": link["bandwidth_gbps"] / network.transfer[pair],
            "latency_ms": network.latency_ms[pair],
        }
        for link, pair in zip(LINKS, PAIRS, strict=True)
    ]
    values = {"links": links, "cell.connections": 200, "cell.devices": {"pipelines": pipelines}}
    return parse(TrainJob, changed(of.to_document(), values))


def enumerated(of: TrainJob, network: Conditions) -> dict[tuple[tuple[int, ...], ...], float]:
    """Seconds of an iteration of every placement whose first device is device 0, by its data centres."""
    seconds: dict[tuple[tuple[int, ...], ...], float] = {}
    for rest in permutations(range(1, 6)):
        pipelines = [[0, *rest[:2]], list(rest[2:])]
        dcs = tuple(sorted(tuple(device // 2 for device in pipeline) for pipeline in pipelines))
        if dcs not in seconds:
            seconds[dcs] = predict(as_documented(of, network, pipelines)).iteration_s
    return seconds


@settings(max_examples=4, deadline=None)
@given(
    transfer=st.tuples(factor, factor, factor),
    latency_ms=st.tuples(*[st.sampled_from([10.0, 25.0])] * 3),
)
def test_the_placement_is_as_fast_as_the_best_that_enumeration_finds(
    transfer: tuple[float, ...], latency_ms: tuple[float, ...]
) -> None:
    """Each placement is planned as a document of its own that says what was measured."""
    of, network = placed(), conditions(transfer, latency_ms)
    seconds = enumerated(of, network)
    assert len(seconds) > 20
    here_s, best_s = seconds[tuple(sorted(of.dcs_of_pipeline))], min(seconds.values())
    spec = single_machine(of, run="test", log_dir="")
    better = better_placement(spec, network, than_s=0.99 * here_s, steps=10**9)
    if better is None:
        assert best_s >= 0.98 * here_s
        return
    again = better.layout.job
    assert better.iteration_s == pytest.approx(seconds[tuple(sorted(again.dcs_of_pipeline))], rel=0.01)
    assert better.iteration_s <= best_s * 1.01
    scenario = as_taken(again, schedule_of(again), of_rows(better.layout.times))
    sums_s = network.sums_s(again)
    timed = predict(again, schedule=schedule_of(again), scenario=scenario, allreduce_s=sums_s).iteration_s
    assert better.iteration_s == pytest.approx(timed), "its times say what it was chosen by"


def test_what_a_pipeline_measured_belongs_to_its_own_links() -> None:
    """The first pipeline crosses north – west on its second hop, the other one west – south on its first."""
    of = placed()
    spec = single_machine(of, run="test", log_dir="")
    counted = planned(of.scenario, schedule_of(of))
    sent_ms = of.between(0, 1).transfer_ms(of.wan_bytes)  # type: ignore[union-attr]
    by_rank = {
        1: {(LINK, 1, 2): 3 * sent_ms, (LATENCY, 1, 2): 17.0},
        2: {(LINK, 1, 2): 2 * sent_ms},
        3: {(LINK, 0, 1): sent_ms, (LATENCY, 0, 1): 11.0},
    }
    network = conditions_of(spec, schedule_of(of), counted, by_rank, now=0.0)
    assert network.transfer == pytest.approx({PAIRS[0]: 3.0, PAIRS[1]: 1.0})
    assert network.latency_ms == {PAIRS[0]: 17.0, PAIRS[1]: 11.0}


def test_a_move_counts_the_states_that_travel() -> None:
    """Closed form: bytes over the measured rate, one after another from a rank that gives to two."""
    of = placed(links=[{**link, "bandwidth_gbps": 8.0} for link in LINKS], connections=200)
    spec = single_machine(of, run="test", log_dir="")
    measured = conditions((2, 1, 1), (30, 10, 10)).between(of)
    by_rank = {a.rank: a for a in spec.ranks}

    def placed_as(*grid: tuple[int, ...]) -> Any:
        rows = [(by_rank[rank], p, s) for p, of_p in enumerate(grid) for s, rank in enumerate(of_p)]
        return tuple(replace(a, pipeline=p, stage=s) for a, p, s in rows)

    assert move_s(spec, spec.ranks, measured) == 0.0
    assert move_s(spec, placed_as((0, 4, 5), (3, 1, 2)), measured) == 0.0, "the same stages, other pipelines"
    one, two = (stage_state_bytes(of, stage) for stage in (1, 2))
    rate = 1e9 / 2  # north – west at half of 8 Gbit/s
    # Ranks 1 (north) and 2 (west) change places: rank 4 and 5 (south) keep the stages that these take.
    south = 0.010 + max(one, two) / 1e9
    assert move_s(spec, placed_as((0, 2, 1), (3, 4, 5)), measured) == pytest.approx(south)
    # All of stage 1 change with all of stage 2: none takes it over the slow link.
    assert move_s(spec, placed_as((0, 2, 1), (3, 5, 4)), measured) == pytest.approx(south)
    # Without a GPU in the south that has it, it goes over the slow link, and to two after one another.
    only = [a for a in spec.ranks if a.rank not in (4, 5)]
    all_take_it = tuple(replace(by_rank[rank], stage=1) for rank in (1, 2, 3))
    slowly = move_s(replace(spec, ranks=tuple(only)), all_take_it, measured)
    assert slowly == pytest.approx(2 * (0.030 + one / rate))


@pytest.mark.parametrize("lost", [1, 4, 5])
def test_on_fewer_gpus_the_placement_is_the_fastest_that_enumeration_finds(lost: int) -> None:
    of = placed(recovery={})
    spec = single_machine(of, run="test", log_dir="")
    layout = smaller(spec, set(range(6)) - {lost})
    assert isinstance(layout, Layout)
    left = [a for a in spec.ranks if a.rank != lost]
    device = {a.rank: a.pipeline * 3 + a.stage for a in left}
    seconds = []
    for rest in permutations([a.rank for a in left if a.rank], 2):
        devices = {"pipelines": [[device[rank] for rank in (0, *rest)]]}
        cut = {"cell.devices": devices, "cell.pipelines": 1, "cell.microbatches": 8}
        seconds.append(predict(parse(TrainJob, changed(of.to_document(), cut))).iteration_s)
    assert predict(layout.job).iteration_s == pytest.approx(min(seconds), rel=0.01)


def test_gpus_that_are_as_planned_leave_a_run_where_it_is() -> None:
    of = placed(devices={"pipelines": [[0, 1, 2], [4, 5, 3]]})
    spec = single_machine(of, run="test", log_dir="")
    assert better_placement(spec, NONE, than_s=0.99 * predict(of).iteration_s, steps=10**9) is None


def test_few_iterations_left_keep_more_gpus_in_their_stages() -> None:
    """With one iteration left the states of many GPUs are not worth a little; with many they are."""
    of = placed(model={"layers": 3, "hidden": 1024, "heads": 2, "seq": 16})
    spec = single_machine(of, run="test", log_dir="")
    slow = conditions((8, 1, 1))
    few, many = (better_placement(spec, slow, than_s=100.0, steps=steps) for steps in (1, 10**6))
    assert few is not None
    assert many is not None
    assert few.move_s <= many.move_s
    assert few.iteration_s >= many.iteration_s
    assert few.iteration_s + few.move_s <= many.iteration_s + many.move_s


def test_a_slow_gpu_goes_where_it_delays_least() -> None:
    """Stage 2 has a third of the work: the slow GPU computes it, whatever it computed before."""
    times = {"forward": [30, 10, 30], "recompute": [30, 10, 30], "backward": [60, 20, 60]}
    links = [{**link, "latency_ms": 0, "bandwidth_gbps": 100} for link in LINKS]
    of = placed(times_ms=times, links=links, microbatches=8)
    spec = single_machine(of, run="test", log_dir="")
    placement = better_placement(
        spec, Conditions(of_gpu={5: 2.5}, transfer={}, latency_ms={}), than_s=9.0, steps=99
    )
    assert placement is not None
    assert [a.stage for a in placement.layout.ranks if a.rank == 5] == [1]


def test_the_event_names_the_way_of_every_pipeline() -> None:
    spec = single_machine(placed(), run="test", log_dir="")
    placement = better_placement(spec, conditions((8, 1, 1)), than_s=9.0, steps=100)
    assert placement is not None
    event = LayoutChanged(
        rank=0,
        iteration=10,
        deviations=(Deviation(what=TimedWork.LINK, at=(1, 2), planned_ms=20.0, measured_ms=160.0),),
        before_s=1.0,
        after_s=placement.iteration_s,
        gain_s=9.0,
        cost_s=1.0,
        t=1e9,
        **change(spec, placement.layout.applied(spec), "another layout is faster"),
    )
    text = moved(event)
    assert text.startswith(
        "Moved to another placement from iteration 11 on: 2 pipelines of 3 stages through "
    )
    assert " and " in text
    for dcs in set(placement.layout.job.dcs_of_pipeline):
        assert f"{NAMES[dcs[0]]} ({dcs.count(dcs[0])})" in text


@pytest.mark.long
def test_a_run_is_placed_again_when_a_link_drifts_and_its_losses_stay(tmp_path: Path) -> None:
    saved = {"dir": str(tmp_path / "saved"), "every": 3}
    of = placed(steps=30, dtype="fp64", checkpoint=saved, adapt={"layout": True, "deviation": 0.5})
    run = Run(of, str(tmp_path), Disturbance(between=((0, 1, 8.0, 1.0),), since=2))
    result = run.result()
    (move,) = run.of_kind("layout_changed")
    devices = move["layout"]["job"]["cell"]["devices"]["pipelines"]
    ways = [[device // 2 for device in pipeline] for pipeline in devices]
    assert all({a, b} != {0, 1} for way in ways for a, b in pairwise(way)), "none crosses the slow link"
    assert move["after_s"] < 0.8 * move["before_s"]
    assert 0 < move["cost_s"] < move["gain_s"]
    assert move["lost_s"] > 0
    assert result["recoveries"] == []
    losses, norms, _ = reference(of)
    assert result["losses"] == pytest.approx(losses, rel=1e-12)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-12)


@pytest.mark.long
def test_a_run_is_placed_again_when_a_machine_does_not_return(tmp_path: Path) -> None:
    """Every pipeline loses a GPU; the four that are left make one of three, in an order that none had."""
    saved = {"dir": str(tmp_path / "saved"), "every": 3}
    of = placed(steps=30, dtype="fp64", checkpoint=saved, adapt=None, recovery={"wait_s": 20})
    with Machines(of, tmp_path, [(0, 1), (3, 4), (2, 5)]) as run:
        run.at_step(8)
        run.kill_machines(2, away_s=600)
        result = run.result()
    (recovery,) = run.of_kind("recovery")
    assert recovery["left"] == [2, 5] or len(recovery["left"]) == 3
    assert recovery["layout"]["pipelines"] == 1
    assert recovery["layout"]["job"]["cell"]["devices"]["pipelines"][0][0] == 0
    losses, norms, _ = reference(of)
    assert result["losses"] == pytest.approx(losses, rel=1e-12)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-12)
