"""Runs that take GPUs in reserve, and go back to links and GPUs once their last measurement is too old."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from engine.control.recovery_messages import Hello, Welcome
from engine.errors import InputError
from engine.job.adapt.better import better
from engine.job.adapt.layouts import Conditions, better_layout, conditions_of, lapses_of
from engine.job.adapt.measured import LATENCY, LINK, Measured, planned
from engine.job.adapt.sentences import moved
from engine.job.launch import NOWHERE, LaunchSpec, RankAssignment, gpu_in_reserve, single_machine
from engine.job.memory import state_bytes
from engine.job.planned import schedule_of
from engine.job.predict import predict
from engine.job.recovery.layout import Layout
from engine.job.recovery.reserve import SharedReserve
from engine.run.gpus import check_machine
from engine.train.adapt.follow import SLOTS
from engine.train.adapt.lead import Leader
from tests.runtime.jobs import Run
from tests.runtime.machines import Machines
from tests.runtime.test_adapting import Reports
from tests.runtime.test_moving import NONE, Leading, as_documented, enumerated, moving
from tests.runtime.test_training_equals_single import reference

PAIR = frozenset((0, 1))
DAY_S = 86_400.0


def growing(most: int = 6, **changes: Any) -> Any:
    """One pipeline over three data centres of two GPUs each; the other three GPUs may be held in reserve."""
    adapt = {"layout": True, "most_gpus": most, **changes.pop("adapt", {})}
    return moving(pipelines=1, microbatches=8, adapt=adapt, **changes)


def test_the_reserve_is_whole_pipelines_first_and_ends_with_what_is_listed() -> None:
    datacenters = [{"name": name, "gpus": gpus} for name, gpus in (("north", 5), ("west", 3), ("south", 2))]

    def reserve(most: int) -> list[str]:
        spec = single_machine(growing(most, datacenters=datacenters), run="x", log_dir="")
        assert [a.rank for a in spec.gpus] == list(range(len(spec.gpus)))
        assert spec.local == tuple(range(len(spec.gpus)))
        assert all((a.pipeline, a.stage) == (NOWHERE, NOWHERE) for a in spec.reserve)
        assert len({(a.dc, a.gpu) for a in spec.gpus}) == len(spec.gpus), "no GPU twice"
        assert LaunchSpec.from_json(spec.to_json()) == spec
        return [a.dc_name for a in spec.reserve]

    assert reserve(3) == []
    assert reserve(5) == ["north", "west"]
    assert reserve(100) == ["north", "west", "south", *["north"] * 3, "west"]
    assert single_machine(moving(pipelines=1), run="x", log_dir="").reserve == (), "only where it is wanted"


@pytest.mark.parametrize(
    ("adapt", "changes", "why"),
    [
        ({"most_gpus": 6}, {}, r"adapt\.most_gpus: 6: needs failures\.adapt\.layout"),
        ({"layout": True, "most_gpus": 2}, {}, r"most_gpus: 2: at least 3"),
        ({"layout": True, "most_gpus": 0}, {}, r"most_gpus"),
        ({"layout": True, "forget_s": 0}, {}, r"forget_s"),
        (
            {"layout": True, "most_gpus": 6},
            {"devices": {"pipelines": [[0, 2, 4]]}, "dc_of_stage": None},
            r"most_gpus: .*left out with devices",
        ),
    ],
)
def test_a_reserve_that_makes_no_sense_is_refused(
    adapt: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        moving(pipelines=1, microbatches=8, adapt=adapt, **changes)


def test_a_machine_holds_what_its_run_may_grow_to() -> None:
    spec = single_machine(
        growing(model={"layers": 3, "hidden": 512, "heads": 2, "seq": 16}), run="x", log_dir=""
    )
    with patch("engine.run.gpus.machine_bytes", return_value=10**12):
        check_machine(spec)
    three = sum(state_bytes(spec.job))
    with patch("engine.run.gpus.machine_bytes", return_value=three):
        check_machine(replace(spec, reserve=(), local=(0, 1, 2)))
        with pytest.raises(InputError, match="of 6 ranks"):
            check_machine(spec)


@pytest.mark.parametrize("slow", [NONE, Conditions(of_gpu={}, transfer={PAIR: 4.0}, latency_ms={PAIR: 25.0})])
def test_with_a_reserve_the_layout_is_as_fast_as_the_best_of_all_gpus(slow: Conditions) -> None:
    """Each layout of one or two pipelines is planned as a document of its own that says what was measured."""
    of = growing()
    spec = single_machine(of, run="test", log_dir="")
    seconds = enumerated(of, slow)
    here_s = predict(as_documented(of, slow, {})).iteration_s
    assert better_layout(spec, NONE, than_s=0.99 * predict(of).iteration_s) is None, "not without it"
    layout = better_layout(spec, slow, than_s=0.99 * here_s, reserve=spec.reserve)
    assert layout is not None
    job = layout.layout.job
    assert job.cell.pipelines == 2
    assert layout.iteration_s == pytest.approx(min(seconds.values()), rel=0.01)
    assert job.cell.global_batch == of.cell.global_batch
    assert {a.rank for a in layout.layout.ranks} == set(range(6))
    assert [(a.pipeline, a.stage) for a in layout.layout.ranks if a.rank == 0] == [(0, 0)]


def test_a_gpu_in_reserve_takes_the_place_of_a_slow_one() -> None:
    of = growing(5, datacenters=[{"name": name, "gpus": 2} for name in ("north", "west", "south")])
    spec = single_machine(of, run="test", log_dir="")
    assert [a.dc_name for a in spec.reserve] == ["north", "west"]
    slow = Conditions(of_gpu={1: 3.0}, transfer={}, latency_ms={})
    layout = better_layout(spec, slow, than_s=10.0, reserve=spec.reserve[1:])
    assert layout is not None
    assert [(a.rank, a.stage) for a in layout.layout.ranks] == [(0, 0), (2, 2), (4, 1)]
    assert layout.iteration_s == pytest.approx(predict(of).iteration_s)


def test_gpus_that_joined_later_count_beyond_those_that_the_document_lists() -> None:
    of = growing(12)
    spec = single_machine(of, run="test", log_dir="")
    more = [
        gpu_in_reserve(rank, dc, dc_name, node=f"new-{rank}", host="127.0.0.1", gpu=0)
        for rank, (dc, dc_name) in enumerate([(0, "north"), (1, "west"), (2, "south")] * 2, start=6)
    ]
    layout = better_layout(spec, NONE, than_s=10.0, reserve=(*spec.reserve, *more))
    assert layout is not None
    assert [a.dc_name for a in layout.layout.ranks].count("north") == 4
    assert [dc.gpus for dc in layout.layout.job.datacenters] == [4, 4, 4]


def test_the_shared_reserve_gives_what_was_written_last() -> None:
    shared = SharedReserve()
    assert shared.read() == ()
    spec = single_machine(growing(), run="test", log_dir="")
    for gpus in (spec.reserve, spec.reserve[:1], (), spec.ranks):
        shared.write(gpus)
        assert shared.read() == gpus


class Line:
    """A connection of the leading host to another machine."""

    def __init__(self, rank: int) -> None:
        self.rank, self.sent = rank, cast(list[Any], [])

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        pass


def hello(lead: Any, *gpus: RankAssignment) -> Line:
    line = Line(gpus[0].rank)
    ranks = tuple(gpu.rank for gpu in gpus)
    held = dict.fromkeys(ranks, ())
    lead.handle(line, Hello(ranks=ranks, reserve=gpus, held=held, attempt=0, lost_at=0.0))
    return line


def west(rank: int) -> RankAssignment:
    return gpu_in_reserve(rank, 1, "west", node=f"late-{rank}", host="127.0.0.1", gpu=0)


def test_machines_join_the_reserve_during_a_run_up_to_the_most_that_it_may_hold(tmp_path: Path) -> None:
    host = Leading(tmp_path, of=growing(8), propose=False)
    known = host.reserve.read()
    assert [a.rank for a in known] == [3, 4, 5]
    line = hello(host.lead, west(6))
    assert [type(message) for message in line.sent] == [Welcome]
    assert host.reserve.read() == (*known, west(6))
    hello(host.lead, west(7))
    with pytest.raises(ValueError, match="may hold no more GPUs"):
        hello(host.lead, west(8))
    with pytest.raises(ValueError, match="in no data centre"):
        hello(host.lead, replace(west(8), dc=7))
    host.lead.lost(cast(Any, line), "its connection broke")
    assert [a.rank for a in host.reserve.read()] == [3, 4, 5, 7]
    assert (host.ranks.killed, host.events) == (0, []), "the run does not need it"


def test_a_run_without_a_reserve_sends_machines_away(tmp_path: Path) -> None:
    host = Leading(tmp_path, of=moving(), propose=False)
    with pytest.raises(ValueError, match="may hold no more GPUs"):
        hello(host.lead, west(6))
    assert host.reserve.read() == ()


def test_a_move_takes_gpus_that_joined_and_says_so(tmp_path: Path) -> None:
    host = Leading(tmp_path, of=growing(), propose=False)
    host.propose()
    host.saved(10)
    (_, attempt) = host.ranks.attempts
    assert attempt.layout is not None
    assert [a.rank for a in attempt.layout.ranks] == list(range(6))
    assert host.reserve.read() == (), "all are in use now"
    host.lead.runs()
    (event,) = host.events
    assert [(one.rank, one.dc, one.node, one.gpu) for one in event.joined] == [
        (3, "north", "north-1", 1),
        (4, "west", "west-1", 1),
        (5, "south", "south-1", 1),
    ]
    text = moved(event)
    assert "on 6 GPUs (3 before), with GPU 1 of north-1 in north" in text
    assert Layout.of_event(replace(host.lead._spec, ranks=host.lead._spec.gpus), event).ranks


def test_a_gpu_in_reserve_that_is_lost_before_a_move_cancels_it(tmp_path: Path) -> None:
    of = growing(7, datacenters=[{"name": name, "gpus": 2} for name in ("north", "west", "south")])
    host = Leading(tmp_path, of=of, propose=False)
    line = hello(host.lead, west(6))
    host.propose(takes=(west(6),))
    host.lead.lost(cast(Any, line), "its connection broke")
    host.saved(10)
    assert [attempt.layout for attempt in host.ranks.attempts] == [None, None]
    host.lead.runs()
    assert host.events == []


def test_the_run_keeps_gpus_that_a_move_leaves(tmp_path: Path) -> None:
    of = moving(
        adapt={"layout": True, "most_gpus": 6}, model={"layers": 6, "hidden": 32, "heads": 2, "seq": 16}
    )
    spec = single_machine(of, run="test", log_dir="")
    slow = Conditions(of_gpu={5: 6.0}, transfer={}, latency_ms={})
    layout = better_layout(spec, slow, than_s=10.0)
    assert layout is not None
    host = Leading(tmp_path, of=of, propose=False)
    host.propose(layout)
    host.saved(10)
    used = {a.rank for a in layout.layout.ranks}
    assert [a.rank for a in host.reserve.read()] == sorted(set(range(6)) - used)


def measuring(
    of: Any, reserve: SharedReserve, clock: Callable[[], float], **fields: Any
) -> tuple[Leader, list[Any], Callable[[int, Mapping[Any, float]], Any]]:
    """A first rank, the events that it emits, and a function that begins an iteration and reports it."""
    spec = replace(single_machine(of, run="test", log_dir=""), **fields)
    store, events, schedule = Reports(), cast(list[Any], []), schedule_of(of)
    leader = Leader(
        cast(Any, store), spec=spec, schedule=schedule, emit=events.append, reserve=reserve, clock=clock
    )
    leader.started(0.1, lambda: 0.1)

    def iterate(iteration: int, taken: Mapping[Any, float]) -> Any:
        before = leader.before(iteration)
        rows = [[*name, ms] for name, ms in taken.items()]
        for a in spec.ranks:
            value = json.dumps([iteration, rows if a.rank == 0 else []])
            store.set(f"adapt/report/{iteration % SLOTS}/{a.rank}", value)
        return before

    return leader, events, iterate


def test_a_reserve_is_considered_once_though_nothing_deviates_and_again_when_it_grows() -> None:
    of = growing(steps=4000, datacenters=[{"name": "north", "gpus": 6}], links=[], dc_of_stage=[0, 0, 0])
    schedule = schedule_of(of)
    expected: Measured = planned(of.scenario, schedule)
    reserve = single_machine(of, run="test", log_dir="").reserve
    held = [reserve[0]]  # one more GPU alone is of no use
    shared = SharedReserve()
    shared.write(held)
    _, events, iterate = measuring(of, shared, lambda: 1e9)
    searches = []
    search = better

    def counted(*args: Any, **kwargs: Any) -> Any:
        searches.append(kwargs["reserve"])
        return search(*args, **kwargs)

    with (
        patch("engine.train.adapt.lead.AT_ONCE_S", 60),
        patch("engine.train.adapt.lead.better", counted),
    ):
        for iteration in range(12):
            iterate(iteration, expected)
        assert (searches, events) == ([(reserve[0],)], [])
        assert shared.considered() == {0, 1, 2, 3}
        shared.write(reserve)
        for iteration in range(12, 24):
            iterate(iteration, expected)
    assert searches == [(reserve[0],), reserve]
    (event,) = events
    assert (event.cause, event.deviations, event.layout.gpus) == ("reserve", (), 6)
    assert [one.rank for one in event.joined] == [3, 4, 5]
    assert event.gain_s > event.cost_s
    steps = of.optimizer.steps - event.iteration
    assert event.gain_s == pytest.approx(steps * (event.before_s - event.after_s), abs=0.01)
    assert shared.considered() == set(range(6)), "the next attempt does not look again"
    assert "GPUs in reserve had not been considered" in moved(event)


def test_gpus_in_reserve_are_left_where_a_move_costs_more_than_it_gains() -> None:
    of = growing(steps=14)
    shared = SharedReserve()
    shared.write(single_machine(of, run="test", log_dir="").reserve)
    leader, events, iterate = measuring(of, shared, lambda: 1e9)
    leader.started(100.0, lambda: 1.0)
    with patch("engine.train.adapt.lead.AT_ONCE_S", 60):
        for iteration in range(12):
            iterate(iteration, planned(of.scenario, schedule_of(of)))
    assert events == []


def left_the_link(at: float, **adapt: Any) -> tuple[LaunchSpec, Any]:
    """A run that left the link of north and west when it was six times as slow, at a Unix time."""
    of = moving(adapt={"layout": True, **adapt}, steps=4000)
    spec = single_machine(of, run="test", log_dir="")
    slow = Conditions(
        of_gpu={}, transfer={PAIR: 6.0}, latency_ms={PAIR: 30.0}, at={(LINK, 0, 1): at, (LATENCY, 0, 1): at}
    )
    layout = better_layout(spec, slow, than_s=10.0)
    assert layout is not None
    now = layout.layout.applied(spec)
    assert now.job.dcs == (0, 2, 1)
    return now, schedule_of(now.job)


def test_a_measurement_of_a_link_that_is_not_used_is_forgotten_after_a_time() -> None:
    spec, schedule = left_the_link(1e9, forget_s=600)
    assert lapses_of(spec, schedule) == [1e9 + 600]

    def found(now: float) -> Conditions:
        return conditions_of(spec, schedule, planned(spec.job.scenario, schedule), {}, now=now)

    assert found(1e9 + 599).transfer[PAIR] == 6.0
    assert PAIR not in found(1e9 + 600).transfer
    assert PAIR not in found(1e9 + 600).latency_ms
    assert frozenset((0, 2)) in found(1e9 + 600).transfer, "a link in use was just measured"
    assert Conditions.of_rows(json.loads(json.dumps(found(1e9).as_rows()))) == found(1e9)


def test_a_run_returns_to_a_link_once_its_measurement_is_too_old() -> None:
    """The link that it took instead is 2.5 times as slow as planned, as it expects."""
    now = [1e9]
    spec, schedule = left_the_link(now[0], forget_s=DAY_S)
    counted = planned(spec.job.scenario, schedule)
    taken = {name: ms * (2.5 if name == (LINK, 0, 1) else 1.0) for name, ms in counted.items()}
    times = tuple((*name, ms) for name, ms in taken.items())
    of = spec.job
    _, events, iterate = measuring(
        of, SharedReserve(), lambda: now[0], ranks=spec.ranks, conditions=spec.conditions, times=times
    )
    with patch("engine.train.adapt.lead.AT_ONCE_S", 60):
        for iteration in range(12):
            iterate(iteration, taken)
        assert events == [], "nothing deviates, and the link counts as slow"
        now[0] += DAY_S
        for iteration in range(12, 24):
            iterate(iteration, taken)
    (event,) = events
    assert (event.cause, event.deviations) == ("forgotten", ())
    dcs = event.layout.job["cell"]["dc_of_stage"]
    assert PAIR in {frozenset(hop) for hop in pairwise(dcs)}
    assert "became too old" in moved(event)


# Two stages, one in the north and one in the south, on four GPUs: one pipeline grows to two.
SMALL: dict[str, Any] = {
    "datacenters": [{"name": name, "gpus": 2} for name in ("north", "south")],
    "links": [{"between": ["north", "south"], "latency_ms": 5, "bandwidth_gbps": 1}],
    "stages": 2,
    "dc_of_stage": [0, 1],
    "pipelines": 1,
    "microbatches": 16,
    "model": {"layers": 2, "hidden": 32, "heads": 2, "seq": 16},
    "dtype": "fp64",
    "adapt": {"layout": True, "most_gpus": 4, "deviation": 10},
}


def check_growth(run: Any, result: dict[str, Any], of: Any) -> None:
    """One move, to all four GPUs, without a loss that differs."""
    (move,) = run.of_kind("layout_changed")
    assert (move["cause"], move["deviations"]) == ("reserve", [])
    assert (move["layout"]["pipelines"], move["layout"]["gpus"]) == (2, 4)
    assert [one["rank"] for one in move["joined"]] == [2, 3]
    assert move["after_s"] < 0.7 * move["before_s"]
    assert result["layout_changes"][0]["joined"] == move["joined"]
    losses, norms, _ = reference(of)
    assert result["losses"] == pytest.approx(losses, rel=1e-12)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-12)


@pytest.mark.long
def test_a_run_grows_into_its_reserve_and_its_losses_stay(tmp_path: Path) -> None:
    of = moving(**SMALL, steps=60, checkpoint={"dir": str(tmp_path / "saved"), "every": 100})
    run = Run(of, str(tmp_path))
    check_growth(run, run.result(), of)
    states = [event["state"] for event in run.of_kind("rank") if event["rank"] == 3]
    assert states == ["reserve", "starting", "ready", "running", "finished"]


@pytest.mark.long
def test_a_machine_that_the_launch_did_not_know_is_taken(tmp_path: Path) -> None:
    of = moving(**SMALL, steps=60, checkpoint={"dir": str(tmp_path / "saved"), "every": 100})
    with Machines(of, tmp_path, [(0,), (1,), (2, 3)], joins=(2,)) as run:
        check_growth(run, run.result(), of)
