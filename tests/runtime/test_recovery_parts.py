"""From where a run goes on, what failed, and what is kept of steps: without processes."""

import dataclasses
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.control.messages import line_of
from engine.control.recovery_messages import FROM_LEADER, Start
from engine.errors import Infeasible, InputError
from engine.job.events.event import Event
from engine.job.launch import LaunchSpec, single_machine
from engine.job.prefill.adjacent_stages import gpus_of
from engine.job.recovery.attempt import Attempt, EndedRank, OpenFailure
from engine.job.recovery.cutting import cell_changes
from engine.job.recovery.history import History
from engine.job.recovery.layout import Layout
from engine.job.recovery.plan import Saved, restart_point
from engine.job.recovery.smaller import smaller
from engine.nn.device import CpuDevice
from engine.train.recovery.memory import Header, Memory, held, new_memory
from tests.events import event
from tests.runtime.jobs import job
from tests.runtime.prefill.live import prefill

SPEC: LaunchSpec = single_machine(job(recovery={}), run="x", log_dir="")
RANKS = range(6)  # two pipelines of three stages: 0 1 | 2 and 3 4 | 5


def test_the_newest_step_that_all_hold() -> None:
    point = restart_point(
        SPEC, {rank: (4, 5) if rank == 2 else (5, 6) for rank in RANKS if rank != 5} | {5: (4, 5)}, None
    )
    assert (point.source, point.step, point.peers) == ("memory", 5, {})


def test_a_replica_gives_what_a_lost_machine_held() -> None:
    point = restart_point(SPEC, {rank: (5, 6) for rank in RANKS if rank not in (3, 4)}, None)
    assert (point.source, point.step, point.peers) == ("peer", 6, {3: 0, 4: 1})


def test_a_stage_that_nobody_holds_goes_back_to_the_checkpoint_or_the_start() -> None:
    states = {rank: (5, 6) for rank in RANKS if rank not in (2, 5)}
    saved = Saved(step=4, where="/saved/4")
    assert restart_point(SPEC, states, saved).source == "checkpoint"
    assert (restart_point(SPEC, states, saved).step, restart_point(SPEC, states, saved).where) == (
        4,
        "/saved/4",
    )
    assert (restart_point(SPEC, states, None).source, restart_point(SPEC, states, None).step) == ("start", 0)
    assert restart_point(SPEC, {}, None).source == "start"


@given(st.lists(st.integers(0, 1), min_size=6, max_size=6), st.sets(st.integers(0, 5), max_size=3))
def test_no_rank_begins_with_a_state_that_nobody_has(ahead: list[int], lost: set[int]) -> None:
    """Whatever ranks are a step ahead and whatever machines are lost."""
    states = {rank: (8 + ahead[rank], 9 + ahead[rank]) for rank in RANKS if rank not in lost}
    point = restart_point(SPEC, states, None)
    if point.source == "start":
        assert any({stage, stage + 3} <= lost for stage in range(3))
        return
    assert point.step in (9, 10)
    for rank in RANKS:
        giver = point.peers.get(rank, rank)
        assert giver % 3 == rank % 3
        assert point.step in states[giver]


@pytest.mark.parametrize(
    ("dead", "nodes", "failed"),
    [
        (
            [EndedRank(rank=4, why="killed", cause=True), EndedRank(rank=5, why="lost", cause=False)],
            {},
            "rank",
        ),
        ([EndedRank(rank=2, why="lost rank 1 over north → south", cause=False)], {}, "link"),
        ([EndedRank(rank=0, why="lost", cause=False)], {"north-1": "it ended"}, "node"),
        ([], {"south-0": "silent for 4.6 s", "south-1": "it ended"}, "datacenter"),
        ([EndedRank(rank=r, why="killed by SIGKILL", cause=True) for r in (2, 5)], {}, "datacenter"),
    ],
)
def test_what_failed(dead: list[EndedRank], nodes: dict[str, str], failed: str) -> None:
    trouble = OpenFailure(noticed=0.0)
    trouble.add(dead)
    trouble.nodes.update(nodes)
    assert trouble.described(SPEC)[0] == failed


def test_a_link_is_named_by_who_was_at_it_though_others_ended_first() -> None:
    whys = {
        0: "[gloo] connection closed by peer",
        2: "rank 2 lost rank 5 over LAN of south: the connections broke",
        5: "rank 5 lost rank 4 over north → south: silent for 4.2 s",
    }
    trouble = OpenFailure(noticed=0.0)
    for rank, why in whys.items():
        trouble.add([EndedRank(rank=rank, why=why, cause=False)])
    assert trouble.described(SPEC) == ("link", whys[5])
    assert trouble.silent_s == 4.2


def test_an_attempt_survives_its_way_to_the_others() -> None:
    attempt = Attempt(number=3, step=7, source="peer", peers={3: 0, 4: 1}, store_port=5, retell=True)
    assert FROM_LEADER.read(line_of(Start(attempt=attempt))) == Start(attempt=attempt)
    cut = smaller(SPEC, {0, 1, 2})
    assert isinstance(cut, Layout)
    start = Start(attempt=dataclasses.replace(attempt, layout=cut))
    assert FROM_LEADER.read(line_of(start)) == start


@given(st.sets(st.integers(1, 5)), st.sampled_from([None, 2, 3]), st.integers(1, 3))
def test_a_smaller_layout_keeps_the_batch_and_computes_each_stage_once(
    others: set[int], layers_per_gpu: int | None, microbatches: int
) -> None:
    whole = job(recovery={"layers_per_gpu": layers_per_gpu}, microbatches=microbatches, dtype="fp64")
    left = {0, *others}
    cut = smaller(single_machine(whole, run="x", log_dir=""), left)
    fits = [
        stages
        for stages in range(1, 4)
        if stages <= len(left) and (stages == 3 or -(-3 // stages) <= (layers_per_gpu or 0))
    ]
    if isinstance(cut, Infeasible):
        assert not fits
        assert "cannot hold a pipeline of 3 layers" in cut.reason
        return
    now = cut.job
    assert now.cell.stages == max(fits)
    assert now.cell.global_batch == whole.cell.global_batch
    assert {a.rank for a in cut.ranks} <= left
    positions = [(a.pipeline, a.stage) for a in cut.ranks]
    assert sorted(positions) == [(p, s) for p in range(now.cell.pipelines) for s in range(now.cell.stages)]
    assert all(a.dc == now.dcs_of_pipeline[a.pipeline][a.stage] == (a.rank % 3 == 2) for a in cut.ranks)
    assert next((a.pipeline, a.stage) for a in cut.ranks if a.rank == 0) == (0, 0)


@pytest.mark.parametrize("degree", [1, 2])
def test_a_smaller_layout_prefills_where_its_cells_can(degree: int) -> None:
    served = prefill(Path("/models/x"), pp_degree=degree)
    cut = smaller(single_machine(job(prefill=served, cells=2, recovery={}), run="x", log_dir=""), {0, 2, 4})
    assert isinstance(cut, Layout)
    assert (cut.job.prefill is not None) == (degree == 1)
    assert [me.rank for me in gpus_of(cut.applied(SPEC), 0)] == [0, 4], "by stage, whatever their numbers"


def test_who_has_a_stage_in_memory_keeps_it() -> None:
    cut = smaller(SPEC, {0, 2, 4, 5})
    assert isinstance(cut, Layout)
    assert {a.rank: a.stage for a in cut.ranks} == {0: 0, 4: 1, 2: 2}
    point = restart_point(cut.applied(SPEC), dict.fromkeys((0, 2, 4), (5, 6)), None)
    assert (point.source, point.step) == ("memory", 6)


def test_without_the_first_rank_the_layout_is_one_for_another_launch() -> None:
    cut = smaller(SPEC, {3, 4, 5})
    assert isinstance(cut, Layout)
    assert {a.rank: (a.pipeline, a.stage) for a in cut.ranks} == {3: (0, 0), 4: (0, 1), 5: (0, 2)}
    whole = job(recovery={"layers_per_gpu": 2})
    elsewhere = smaller(single_machine(whole, run="x", log_dir=""), {2, 5})
    assert isinstance(elsewhere, Layout)
    assert elsewhere.job.dcs == (1, 1), "the first data centre is lost with all its GPUs"


@pytest.mark.parametrize("limit", [4, [5, 4, 6]])
def test_fewer_stages_take_the_times_and_limits_of_their_layers(limit: int | list[int]) -> None:
    times = {"forward": [10.0, 20.0, 30.0], "backward": 20.0, "recompute": 10.0}
    whole = job(device="emulated", times_ms=times, memory_limit=limit, recovery={"layers_per_gpu": 2})
    cut = smaller(single_machine(whole, run="x", log_dir=""), {0, 1})
    assert isinstance(cut, Layout)
    assert cut.job.device.times_ms is not None
    assert cut.job.device.times_ms.forward == [30.0, 30.0]
    assert cut.job.device.times_ms.backward == [40.0, 20.0]
    assert cut.job.pipeline_strategy.memory_limit == 2


def test_limits_by_stage_stay_where_the_gpus_do() -> None:
    whole = job(memory_limit=[5, 4, 6])

    def limit(dcs: tuple[int, ...]) -> Any:
        changes = cell_changes(whole, stages=3, pipelines=1, passes=(2, 1), moves=dcs != whole.dcs)
        return changes.get("strategy.memory_limit", "as it was")

    assert limit(whole.dcs) == "as it was"
    assert limit(tuple(1 - dc for dc in whole.dcs)) == 4


def test_layers_by_hand_stay_with_as_many_stages_and_are_even_with_fewer() -> None:
    times = {"forward": [10.0, 40.0, 10.0], "backward": 20.0, "recompute": 10.0}
    shape = {"layers": 6, "hidden": 32, "heads": 2, "seq": 16}
    whole = job(
        device="emulated",
        times_ms=times,
        layers_per_stage=[1, 4, 1],
        model=shape,
        recovery={"layers_per_gpu": 3},
    )
    spec = single_machine(whole, run="x", log_dir="")
    three, two = smaller(spec, {0, 1, 2}), smaller(spec, {0, 1})
    assert isinstance(three, Layout)
    assert isinstance(two, Layout)
    assert three.job.cell.layers_per_stage == [1, 4, 1]
    assert two.job.cell.layers_per_stage is None
    assert two.job.device.times_ms is not None
    assert two.job.device.times_ms.forward == [30.0, 30.0]


def test_a_placement_on_fewer_gpus_is_made_anew() -> None:
    """The third GPU of the first pipeline is in the south; one in the north with the same stage is left."""
    placed = job(dc_of_stage=None, devices={"pipelines": [[0, 1, 4], [2, 5, 3]]}, recovery={})
    spec = single_machine(placed, run="x", log_dir="")
    cut, across = smaller(spec, {0, 1, 2, 4, 5}), smaller(spec, {0, 1, 3, 4, 5})
    assert isinstance(cut, Layout)
    assert [(a.rank, a.stage) for a in cut.ranks] == [(0, 0), (1, 1), (5, 2)]
    assert cut.job.cell.devices is not None
    assert cut.job.cell.devices.pipelines == [[0, 1, 3]]
    assert isinstance(across, Layout)
    assert len(across.ranks) == 3, "no pipeline is whole, but three GPUs make one"
    assert isinstance(smaller(spec, {0, 1}), Infeasible)


class Stage:
    def __init__(self, fd: int) -> None:
        self.layer = torch.nn.Linear(3, 2, dtype=torch.float64)
        self.parameters = list(self.layer.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.1)
        self.memory = Memory(fd, self.parameters, self.optimizer, CpuDevice())
        self.generator = torch.Generator().manual_seed(3)

    def step(self) -> None:
        for parameter in self.parameters:
            parameter.grad = torch.rand(parameter.shape, generator=self.generator, dtype=parameter.dtype)
        self.optimizer.step()

    def keep(self, step: int) -> None:
        self.memory.keep(Header(step=step, resumed_from=None, square_sum=step / 3, loss=step / 7))

    def state(self) -> list[torch.Tensor]:
        moments = [
            self.optimizer.state[p][m] for p in self.parameters for m in ("exp_avg", "exp_avg_sq", "step")
        ]
        return [tensor.detach().clone() for tensor in itertools.chain(self.parameters, moments)]


def test_memory_gives_back_the_last_two_steps_to_the_bit() -> None:
    fd = new_memory(0)
    assert held(fd) == ()
    stage, states = Stage(fd), {}
    for step in range(1, 6):
        stage.step()
        stage.keep(step)
        states[step] = stage.state()
    assert held(fd) == (4, 5)
    heir = Stage(fd)  # as another process would
    for step in (5, 4):
        assert heir.memory.recall(step) == Header(
            step=step, resumed_from=None, square_sum=step / 3, loss=step / 7
        )
        assert all(torch.equal(a, b) for a, b in zip(heir.state(), states[step], strict=True))
    with pytest.raises(LookupError, match="after 3 steps"):
        heir.memory.recall(3)
    os.close(fd)


def test_a_slot_that_is_half_written_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = new_memory(0)
    stage = Stage(fd)
    stage.step()
    stage.keep(1)
    stage.keep(2)

    def killed(_: Header) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage.memory, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        stage.keep(3)
    assert held(fd) == (2,)
    os.close(fd)


BITS = (1.5, None, 1.25, 0.5)  # a loss in bits per byte by iteration; one is not known


def step(iteration: int) -> Event:
    bits = {} if BITS[iteration] is None else {"bits_per_byte": BITS[iteration]}
    return event("step", iteration=iteration, loss=1.0 / (iteration + 1), grad_norm=2.0, t=9.0, **bits)


def test_a_step_is_told_once_and_none_is_lost() -> None:
    history = History()
    assert [history.takes(step(i)) for i in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
    for iteration in (1, 2, 3):
        history.board.note(iteration, (1.0 / (iteration + 1), 2.0, BITS[iteration]), 9.0)
    assert [row[0] for row in history.unheard()] == [3]
    assert history.before(4) == tuple((i, (1.0 / (i + 1), 2.0, BITS[i])) for i in range(4))
    assert not history.takes(step(3))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"recovery": {"attempts": 0}}, "recovery.attempts"),
        ({"recovery": {"wait_s": 0}}, "recovery.wait_s"),
        ({"recovery": {"layers_per_gpu": 0}}, "recovery.layers_per_gpu"),
        ({"recovery": {"retries": 3}}, "recovery.retries"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        job(**changes)
