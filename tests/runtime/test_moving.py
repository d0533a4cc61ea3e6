"""Runs that move to another layout because it is faster: the search for it, and a whole run."""

import selectors
import socket
from collections.abc import Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control.recovery_lead import Lead
from engine.errors import InputError
from engine.inputs import parse
from engine.job.adapt.layouts import Conditions, FoundLayout, better_layout, conditions_of
from engine.job.adapt.measured import LATENCY, LINK, of_rows, planned
from engine.job.adapt.replan import as_taken
from engine.job.changed import changed
from engine.job.events.incidents import Deviation, LayoutChanged, TimedWork
from engine.job.job import TrainJob
from engine.job.launch import Disturbance, LaunchSpec, single_machine
from engine.job.planned import schedule_of
from engine.job.predict import predict
from engine.job.recovery.attempt import Attempt, EndedRank
from engine.job.recovery.cutting import Ranks
from engine.job.recovery.history import History
from engine.job.recovery.layout import change
from engine.job.recovery.plan import Saved
from engine.job.recovery.reserve import SharedReserve
from engine.simulate import time_schedule
from tests.runtime.jobs import Run, job
from tests.runtime.machines import Machines
from tests.runtime.test_training_equals_single import reference

NAMES = ("north", "west", "south")
LINKS = [
    {"between": [a, b], "latency_ms": 10, "bandwidth_gbps": 0.4}
    for a, b in (("north", "west"), ("west", "south"), ("north", "south"))
]
MOVING: dict[str, Any] = {
    "datacenters": [{"name": name, "gpus": 2} for name in NAMES],
    "links": LINKS,
    "dc_of_stage": [0, 1, 2],
    "device": "emulated",
    "times_ms": {"forward": 10, "recompute": 10, "backward": 20},
    "recompute": None,
    "activation_bytes": 1_000_000,
    "policy": "atlas",
    "microbatches": 4,
    "sharing": "temporal",
    "adapt": {"layout": True},
    "recovery": {},
    "checkpoint": {"dir": "checkpoints", "every": 100},
}
NONE = Conditions(of_gpu={}, transfer={}, latency_ms={})
factor = st.sampled_from([1.0, 1.5, 4.0])


def moving(**changes: Any) -> TrainJob:
    return job(**{**MOVING, **changes})


def as_documented(of: TrainJob, conditions: Conditions, changes: dict[str, Any]) -> TrainJob:
    """The job in another layout, whose document says what was measured of its links."""
    links = []
    for link in LINKS:
        pair = frozenset(NAMES.index(name) for name in link["between"])
        rate = link["bandwidth_gbps"] / conditions.transfer.get(pair, 1.0)
        links.append({**link, "bandwidth_gbps": rate, "latency_ms": conditions.latency_ms.get(pair, 10.0)})
    values = {"links": links, "cell.connections": 40, "cell.cells": 1, **changes}
    return parse(TrainJob, changed(of.to_document(), values))


def enumerated(of: TrainJob, conditions: Conditions) -> dict[tuple[Any, ...], float]:
    """Seconds of an iteration by (data centres, microbatches, passes), of every layout of three stages that
    begins in the first data centre, goes through each once, and holds no more in flight than `of`."""
    most = time_schedule(of.scenario, schedule_of(of)).peak_in_flight().max()
    seconds = {}
    for dcs, pipelines in product(product(range(3), repeat=3), (1, 2)):
        ways = [dc for dc, _ in groupby(dcs)]
        fits = all(dcs.count(dc) * pipelines <= 2 for dc in dcs)
        if dcs[0] or len(set(ways)) < len(ways) or not fits:
            continue
        of_pipeline = of.cell.pipelines * of.cell.microbatches // pipelines
        for passes in {1, max(1, of_pipeline // of.cell.microbatches)}:
            cut = {"stages": 3, "dc_of_stage": list(dcs), "pipelines": pipelines, "accumulation": passes}
            cut["microbatches"] = of_pipeline // passes
            one = as_documented(of, conditions, {f"cell.{name}": value for name, value in cut.items()})
            if time_schedule(one.scenario, schedule_of(one)).peak_in_flight().max() <= most:
                seconds[dcs, of_pipeline // passes, passes] = predict(one).iteration_s
    return seconds


@settings(max_examples=8, deadline=None)
@given(
    transfer=st.tuples(factor, factor, factor),
    latency_ms=st.tuples(*[st.sampled_from([10.0, 25.0])] * 3),
    microbatches=st.sampled_from([4, 6]),
)
def test_the_layout_is_as_fast_as_the_best_that_enumeration_finds(
    transfer: tuple[float, ...], latency_ms: tuple[float, ...], microbatches: int
) -> None:
    """Each layout is planned as a document of its own that says what was measured."""
    pairs = [frozenset(NAMES.index(name) for name in link["between"]) for link in LINKS]
    conditions = Conditions(
        of_gpu={},
        transfer=dict(zip(pairs, transfer, strict=True)),
        latency_ms=dict(zip(pairs, latency_ms, strict=True)),
    )
    of = moving(microbatches=microbatches)
    seconds = enumerated(of, conditions)
    here_s, best_s = seconds[of.dcs, microbatches, 1], min(seconds.values())
    better = better_layout(single_machine(of, run="test", log_dir=""), conditions, than_s=0.99 * here_s)
    if better is None:
        assert best_s >= 0.98 * here_s
        return
    again = better.layout.job
    name = again.dcs, again.cell.microbatches, again.cell.accumulation
    assert better.iteration_s == pytest.approx(seconds[name], rel=0.01)
    assert better.iteration_s <= best_s * 1.01
    scenario = as_taken(again, schedule_of(again), of_rows(better.layout.times))
    timed = predict(again, schedule=schedule_of(again), scenario=scenario).iteration_s
    assert better.iteration_s == pytest.approx(timed), "its times say what it was chosen by"


def test_a_layout_keeps_the_batch_the_first_rank_and_what_a_gpu_holds() -> None:
    of = moving(model={"layers": 6, "hidden": 32, "heads": 2, "seq": 16})
    spec = single_machine(of, run="test", log_dir="")
    slow = Conditions(of_gpu={5: 6.0}, transfer={}, latency_ms={})
    layout = better_layout(spec, slow, than_s=10.0)
    assert layout is not None
    cell, ranks = layout.layout.job.cell, layout.layout.ranks
    assert cell.global_batch == of.cell.global_batch
    assert sorted((a.pipeline, a.stage) for a in ranks) == [
        (p, s) for p in range(cell.pipelines) for s in range(cell.stages)
    ]
    assert [(a.pipeline, a.stage) for a in ranks if a.rank == 0] == [(0, 0)]
    assert max(map(len, layout.layout.job.layers_of_stage)) <= 2
    assert all(a.dc == layout.layout.job.dcs[a.stage] for a in ranks)
    assert cell.pipelines == 1, "one pipeline without the slow GPU is faster than two that wait for it"
    assert 5 not in {a.rank for a in ranks}


def test_pipelines_become_more_where_a_data_centre_holds_the_model_alone() -> None:
    """Four GPUs in the north, two in the south: over a bad link one stage on each of the four is faster."""
    datacenters = [{"name": "north", "gpus": 4}, {"name": "south", "gpus": 2}]
    links = [{"between": ["north", "south"], "latency_ms": 10, "bandwidth_gbps": 0.4}]
    changes = {"datacenters": datacenters, "links": links, "dc_of_stage": [0, 0, 1]}
    of = moving(**changes, recovery={"layers_per_gpu": 3})
    spec = single_machine(of, run="test", log_dir="")
    bad = Conditions(of_gpu={}, transfer={frozenset((0, 1)): 30.0}, latency_ms={})
    layout = better_layout(spec, bad, than_s=30.0)
    assert layout is not None
    cell = layout.layout.job.cell
    assert (cell.stages, cell.pipelines, cell.microbatches_of_step) == (1, 4, 2)
    assert {a.dc_name for a in layout.layout.ranks} == {"north"}
    assert len(layout.layout.ranks) == 4


def test_where_all_is_as_planned_no_layout_is_better_than_the_present_one() -> None:
    of = moving()
    spec = single_machine(of, run="test", log_dir="")
    assert better_layout(spec, NONE, than_s=0.99 * predict(of).iteration_s) is None


def test_a_run_does_not_go_back_to_a_link_that_it_has_left() -> None:
    of = moving()
    spec = single_machine(of, run="test", log_dir="")
    slow = Conditions(
        of_gpu={3: 1.2}, transfer={frozenset((0, 1)): 6.0}, latency_ms={frozenset((0, 1)): 30.0}
    )
    moved = better_layout(spec, slow, than_s=10.0)
    assert moved is not None
    now = LaunchSpec.from_json(moved.layout.applied(spec).to_json())
    schedule = schedule_of(now.job)
    conditions = conditions_of(now, schedule, of_rows(now.times), {}, now=1e9)
    pair = frozenset((0, 1))
    assert (conditions.transfer[pair], conditions.latency_ms[pair]) == (6.0, 30.0)
    assert Conditions.of_rows(conditions.as_rows()) == conditions
    assert better_layout(now, conditions, than_s=0.99 * moved.iteration_s) is None


def test_conditions_belong_to_gpus_and_links() -> None:
    of = moving()
    spec = single_machine(of, run="test", log_dir="")
    schedule = schedule_of(of)
    counted = planned(of.scenario, schedule)
    measured = {**counted, (LINK, 0, 1): 3 * counted[LINK, 0, 1], (LATENCY, 1, 2): 17.0}
    by_rank = {4: {name: 2.0 * ms for name, ms in counted.items() if name[1:] == (1,)}}
    conditions = conditions_of(spec, schedule, measured, by_rank, now=1e9)
    assert conditions.transfer == pytest.approx({frozenset((0, 1)): 3.0, frozenset((1, 2)): 1.0})
    assert conditions.latency_ms == {frozenset((0, 1)): 10.0, frozenset((1, 2)): 17.0}
    assert conditions.of_gpu == pytest.approx({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 2.0, 5: 1.0})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"recovery": None}, r"adapt\.layout: .*needs failures\.recovery"),
        ({"checkpoint": None}, r"adapt\.layout: .*needs persistence\.checkpoint"),
        ({"adapt": {"layout": "yes"}}, r"adapt\.layout"),
    ],
)
def test_what_a_move_needs_is_asked_for(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        moving(**changes)


@pytest.mark.long
def test_a_run_moves_away_from_a_slow_link_and_its_losses_stay(tmp_path: Path) -> None:
    settings = {"dir": str(tmp_path / "saved"), "every": 3}
    changes = {"steps": 40, "dtype": "fp64", "checkpoint": settings}
    of = moving(**changes, adapt={"layout": True, "deviation": 0.5})
    run = Run(of, str(tmp_path), Disturbance(between=((0, 1, 8.0, 1.0),), since=2))
    result = run.result()
    (move,) = run.of_kind("layout_changed")
    assert move["layout"]["job"]["cell"]["dc_of_stage"] == [0, 2, 1]
    assert move["after_s"] < 0.6 * move["before_s"]
    assert 0 < move["cost_s"] < move["gain_s"]
    assert move["lost_s"] > 0
    assert [one["iteration"] for one in result["layout_changes"]] == [move["iteration"]]
    assert result["recoveries"] == []
    assert {(row["from"], row["to"]) for row in result["wan"] if row["from_stage"] != row["to_stage"]} == {
        *(("north", "south"), ("south", "north"), ("south", "west"), ("west", "south"))
    }
    assert [event["iteration"] for event in run.of_kind("step")] == list(range(40))
    losses, norms, _ = reference(of)
    assert result["losses"] == pytest.approx(losses, rel=1e-12)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-12)


@pytest.mark.long
def test_machines_follow_to_the_new_layout_and_one_that_is_not_needed_leaves(tmp_path: Path) -> None:
    """Only the links of west are slow: one pipeline without west is faster than two that go through it."""
    settings = {"dir": str(tmp_path / "saved"), "every": 3}
    links = [{**link, "bandwidth_gbps": 0.8} for link in LINKS]
    datacenters = [{"name": name, "gpus": 2} for name in NAMES]
    changes = {"steps": 40, "dtype": "fp64", "checkpoint": settings, "links": links}
    model = {"layers": 4, "hidden": 32, "heads": 2, "seq": 16}
    recovery = {"layers_per_gpu": 2}
    of = moving(
        **changes,
        datacenters=datacenters,
        model=model,
        recovery=recovery,
        adapt={"layout": True, "deviation": 0.5},
    )
    slow = Disturbance(between=((0, 1, 16.0, 1.0), (1, 2, 16.0, 1.0)), since=2)
    with Machines(of, tmp_path, [(0, 3), (1, 4), (2, 5)], slow) as run:
        result = run.result()
    (move,) = run.of_kind("layout_changed")
    assert 1 not in move["layout"]["job"]["cell"]["dc_of_stage"]
    assert move["left"] == [1, 4]
    left = {event["rank"] for event in run.of_kind("rank") if event["state"] == "left"}
    assert left == {1, 4}
    assert result["recoveries"] == []
    losses, norms, _ = reference(of)
    assert result["losses"] == pytest.approx(losses, rel=1e-12)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-12)


class PlayedRanks:
    """The ranks of one machine that leads, for its part in recovery (recovery_host.Ranks)."""

    def __init__(self, steps: tuple[int, ...], ranks: Sequence[int]) -> None:
        self.steps, self.ranks = steps, ranks
        self.attempts: list[Attempt] = []
        self.killed = 0

    def begin(self, attempt: Attempt, store: socket.socket | None) -> None:
        self.attempts.append(attempt)

    def kill(self) -> None:
        self.killed += 1

    def gone(self) -> bool:
        return True

    def peer_lost(self) -> list[EndedRank]:
        return []

    def held(self) -> dict[int, tuple[int, ...]]:
        return dict.fromkeys(self.ranks, self.steps)

    def give_up(self, why: str) -> None:
        raise AssertionError(why)

    def leave(self, why: str) -> None:
        raise AssertionError(why)


class Leading:
    """A leading host whose ranks are played: all run in attempt 1, and `move` is what they propose."""

    def __init__(self, tmp_path: Path, *, of: TrainJob | None = None, propose: bool = True) -> None:
        of = of or moving()
        self.spec = single_machine(of, run="test", log_dir=str(tmp_path))
        self.events: list[Any] = []
        self.ranks, self.history = PlayedRanks((11, 12), self.spec.local), History()
        self.reserve = SharedReserve()
        assert of.failures.recovery is not None
        self.lead = Lead(
            self.spec,
            of.failures.recovery,
            self.ranks,
            selectors.DefaultSelector(),
            history=self.history,
            emit=self.events.append,
            listener=None,
            reserve=self.reserve,
        )
        self.lead.tick()
        self.lead.runs()
        if propose:
            self.propose()

    def propose(self, layout: FoundLayout | None = None, *, takes: Ranks = ()) -> None:
        """Propose a layout: the one given, or the best where the link of north and west is slow.

        takes : GPUs in reserve; the best with these where the GPU of rank 1 is slow.
        """
        spec = self.spec
        slow = Conditions(of_gpu={}, transfer={frozenset((0, 1)): 6.0}, latency_ms={})
        if takes:
            slow = Conditions(of_gpu={1: 9.0}, transfer={}, latency_ms={})
        layout = layout or better_layout(spec, slow, than_s=10.0, reserve=takes or spec.reserve)
        assert layout is not None
        assert {a.rank for a in takes} <= {a.rank for a in layout.layout.ranks}
        self.layout = layout.layout
        self.move = LayoutChanged(
            rank=0,
            iteration=10,
            deviations=(Deviation(what=TimedWork.LINK, at=(0, 1), planned_ms=10.0, measured_ms=60.0),),
            before_s=1.0,
            after_s=layout.iteration_s,
            gain_s=10.0,
            cost_s=1.0,
            times=layout.layout.times,
            conditions=layout.layout.conditions,
            t=1e9,
            **change(spec, layout.layout.applied(spec), "another layout is faster"),
        )
        self.lead.propose(self.move)

    def saved(self, step: int) -> None:
        self.history.saved = Saved(step=step, where=f"/saved/step-{step}")
        for _ in range(3):
            self.lead.tick()

    def dies(self) -> None:
        self.lead.trouble([EndedRank(rank=4, why="killed", cause=True)])
        for _ in range(3):
            self.lead.tick()


def test_a_host_moves_once_the_checkpoint_of_the_proposal_is_there(tmp_path: Path) -> None:
    host = Leading(tmp_path)
    host.saved(9)
    assert (host.ranks.killed, len(host.ranks.attempts)) == (0, 1)
    host.saved(10)
    host.saved(10)
    assert (host.ranks.killed, len(host.ranks.attempts)) == (1, 2), "once"
    attempt = host.ranks.attempts[1]
    assert (attempt.source, attempt.step, attempt.where) == ("checkpoint", 10, "/saved/step-10")
    assert attempt.layout is not None
    assert (attempt.layout.ranks, attempt.layout.times) == (host.layout.ranks, host.layout.times)
    assert attempt.layout.conditions == host.layout.conditions
    assert attempt.layout.job.to_document() == host.layout.job.to_document()
    assert host.events == []
    host.lead.runs()
    (event,) = host.events
    assert (event.iteration, event.attempt, event.source, event.layout) == (
        10,
        2,
        "checkpoint",
        host.move.layout,
    )
    assert [one["attempt"] for one in host.lead.layout_changes] == [2]
    assert "job" not in host.lead.layout_changes[0]["layout"]
    assert host.lead.recoveries == []


def test_a_failure_before_a_move_cancels_it(tmp_path: Path) -> None:
    host = Leading(tmp_path)
    host.dies()
    host.saved(10)
    assert [attempt.layout for attempt in host.ranks.attempts] == [None, None]
    host.lead.runs()
    assert [event.kind for event in host.events] == ["recovery"]


def test_a_failure_after_a_move_keeps_the_layout_and_tells_of_it(tmp_path: Path) -> None:
    host = Leading(tmp_path)
    host.saved(10)
    host.ranks.steps = ()
    host.dies()
    host.lead.runs()
    layouts = [attempt.layout and attempt.layout.ranks for attempt in host.ranks.attempts]
    assert layouts == [None, host.layout.ranks, host.layout.ranks]
    (event,) = host.events
    assert (event.kind, event.layout, event.left) == ("recovery", host.move.layout, host.move.left)
