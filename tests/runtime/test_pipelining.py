"""Our schedules in torch.distributed.pipelining: equal to one process, and in the order that was asked."""

import csv
import io
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import (
    _Action,
    _add_reduce_grad,
    _add_send_recv,
    _validate_schedule,
)

from engine.errors import Infeasible
from engine.inputs import parse
from engine.pipelining import positions_of, runtime_of
from engine.pipelining.exchange import check_exchange
from engine.schedule import Scenario, Schedule, build
from engine.schedule.text import parse_schedule
from engine.schedule.torch_actions import add_reductions, torch_actions, torch_csv
from engine.schedule.torch_exchange import add_exchange
from tests.runtime.pipelining_ranks import CASES, RANKS, scenario_of

LIMIT_S = 240
POLICIES = [
    "gpipe",
    "1f1b",
    "interleaved",
    "varuna",
    "atlas",
    "zb-h1",
    "zb-v",
    "crosspipe-ud",
    "crosspipe-udsub",
    "crosspipe-loop",
    "crosspipe-wave",
]


@pytest.fixture(scope="module")
def deviations(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, float]]]:
    """By rank and case, the largest deviations from one process."""
    folder = tmp_path_factory.mktemp("pipelining")
    subprocess.run(
        [sys.executable, "-m", "tests.runtime.pipelining_ranks", str(folder)], check=True, timeout=LIMIT_S
    )
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_one_process(
    deviations: list[dict[str, dict[str, float]]], case: str
) -> None:
    stages = CASES[case]["stages"]
    assert [case in rank for rank in deviations] == [rank < stages for rank in range(RANKS)]
    most = 1e-6 if "fp32" in case else 1e-12
    for rank in deviations[:stages]:
        assert rank[case]["losses"] <= most
        assert rank[case]["gradients"] <= most


Actions = dict[int, list[_Action]]


def exchanged(schedule: Schedule, pipeline: int = 0) -> Actions:
    """Each rank's actions with sends and receives, as torch reads them from the file."""
    rows = add_exchange(add_reductions(torch_actions(schedule, pipeline)), schedule, pipeline)
    read = csv.reader(io.StringIO(torch_csv(rows), newline=""))
    return {rank: [_Action.from_str(text) for text in row] for rank, row in enumerate(read)}


def rank_of(schedule: Schedule, actions: Actions) -> dict[int, int]:
    """The rank of each of torch's stages, as torch finds it in actions that it accepts."""
    length = len(schedule.traversal.positions)
    return _validate_schedule(actions, schedule.stages, length, schedule.microbatches)


def lowered_by_torch(schedule: Schedule, pipeline: int) -> Actions:
    """torch's own sends and receives: each output leaves as soon as it is there."""
    computed = enumerate(torch_actions(schedule, pipeline))
    actions = {rank: [_Action.from_str(text) for text in row] for rank, row in computed}
    ranks = rank_of(schedule, actions)
    reduced = {rank: _add_reduce_grad(row, schedule.microbatches) for rank, row in actions.items()}
    return _add_send_recv(reduced, lambda stage: ranks[stage], len(schedule.traversal.positions))


def built(policy: str, stages: int, microbatches: int, **fields: Any) -> Schedule:
    """A schedule over two data centres."""
    scenario = {
        "policy": policy,
        "stages": stages,
        "microbatches": microbatches,
        "dc_of_stage": [int(2 * stage >= stages) for stage in range(stages)],
        **fields,
    }
    answer = build(parse(Scenario, scenario))
    assert not isinstance(answer, Infeasible)
    return answer.schedule


def sent(actions: Actions, schedule: Schedule, link: tuple[int, int]) -> list[tuple[int, int]]:
    """(microbatch, chunk) of what crosses a hop between neighbours of a straight path or a wave, in order."""
    path = schedule.traversal
    order = []
    for action in actions[link[0]]:
        towards = {"SEND_F": 1, "SEND_B": -1}.get(action.computation_type.value, 0)
        if towards and path.stage_of[action.stage_index + towards] == link[1]:
            order.append((action.microbatch_index, int(path.chunk_of[action.stage_index])))
    return order  # type: ignore[return-value]


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 8),
    weight=st.sampled_from([0, 1]),
    wan=st.sampled_from([(0, 0), (1, 2), (5, 0.5)]),
    pipelines=st.integers(1, 2),
)
def test_torch_reads_any_schedule_and_its_ranks_do_not_wait_for_each_other(
    policy: str, stages: int, microbatches: int, weight: int, wan: tuple[float, float], pipelines: int
) -> None:
    schedule = built(
        policy,
        stages,
        microbatches,
        pipelines=pipelines,
        times={"forward": 1, "backward": 1.5, "weight": weight},
        wan={"latency": wan[0], "transfer": wan[1]},
    )
    pipeline = pipelines - 1
    actions = exchanged(schedule, pipeline)
    ranks = rank_of(schedule, actions)
    check_exchange(actions, ranks)
    for stage, computed in enumerate(torch_actions(schedule, pipeline)):
        assert sorted(positions_of(schedule, stage)) == [
            s for s, rank in sorted(ranks.items()) if rank == stage
        ]
        assert [str(action) for action in actions[stage] if action.is_compute_op] == computed
    if not schedule.link_order:
        assert actions == lowered_by_torch(schedule, pipeline)


@pytest.mark.parametrize("policy", ["crosspipe-wave", "atlas"])
def test_listed_links_send_in_their_order(policy: str) -> None:
    # At these times the wave holds outputs back for others; torch's own lowering would not.
    times = {"forward": 1, "backward": 1.5, "weight": float(policy != "atlas")}
    schedule = built(policy, 2, 6, times=times, wan={"latency": 1, "transfer": 2}, pipelines=2)
    assert schedule.link_order
    for pipeline in range(2):
        actions = exchanged(schedule, pipeline)
        check_exchange(actions, rank_of(schedule, actions))
        for link in schedule.link_order:
            planned = [t for t in schedule.transfers(*link) if t.pipeline == pipeline]
            assert sent(actions, schedule, link) == [(t.microbatch, t.chunk) for t in planned]
        if policy == "crosspipe-wave":
            assert actions != lowered_by_torch(schedule, pipeline)


def test_a_case_of_the_ranks_holds_outputs_back() -> None:
    answer = build(scenario_of("crosspipe-loop, outputs held back"))
    assert not isinstance(answer, Infeasible)
    assert exchanged(answer.schedule) != lowered_by_torch(answer.schedule, 0)


WAVE = "microbatches 1, chunks 2, traversal wave, sharing spatial, gate none\n"
WAVE += "P0 S0: F0 F0.1 B0.1 B0\nP0 S1: F0 F0.1 B0.1 B0"
TWO = "microbatches 2, chunks 1, traversal straight, sharing spatial, gate none\n"
TWO += "P0 S0: F0 F1 B0 B1\nP0 S1: F0 F1 B0 B1"


def test_the_actions_of_a_wave_by_hand() -> None:
    schedule = parse_schedule(WAVE)
    assert torch_csv(torch_actions(schedule)) == "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"
    assert positions_of(schedule, 0) == (0, 3)
    actions = exchanged(schedule)
    assert rank_of(schedule, actions) == {0: 0, 1: 1, 2: 1, 3: 0}
    assert " ".join(map(str, actions[0])) == (
        "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 3REDUCE_GRAD 0RECV_B0 0B0 0REDUCE_GRAD"
    )


@pytest.mark.parametrize(
    ("rank", "swapped", "waits"),
    [
        # Rank 1 takes microbatch 1 first, though 0 is sent first: the messages would change places.
        (1, ("1RECV_F0", "1RECV_F1"), "rank 0 at action 1, 0SEND_F0; rank 1 at action 0, 1RECV_F1"),
        # Rank 0 wants a gradient before it sends the activation that the gradient needs.
        (0, ("0SEND_F1", "0RECV_B1"), "rank 0 at action 3, 0RECV_B1; rank 1 at action 2, 1RECV_F1"),
        (1, ("1F0", "1RECV_F0"), "rank 0 at action 1, 0SEND_F0; rank 1 at action 0, 1F0"),
    ],
)
def test_ranks_that_wait_for_each_other_are_found(rank: int, swapped: tuple[str, str], waits: str) -> None:
    actions = exchanged(parse_schedule(TWO))
    ranks = rank_of(parse_schedule(TWO), actions)
    check_exchange(actions, ranks)
    texts = [str(action) for action in actions[rank]]
    a, b = (texts.index(text) for text in swapped)
    actions[rank][a], actions[rank][b] = actions[rank][b], actions[rank][a]
    with pytest.raises(ValueError, match="the ranks wait for each other: ") as error:
        check_exchange(actions, ranks)
    assert str(error.value).endswith(waits)


def stage(**values: int) -> Any:
    """What is read of a PipelineStage before the runtime is made."""
    return SimpleNamespace(**{"group_size": 2, "group_rank": 0, "num_stages": 4, "stage_index": 0, **values})


@pytest.mark.parametrize(
    ("stages", "fault"),
    [
        ([], "stages: empty"),
        ([stage(group_size=3)], "process group of 3 ranks: the schedule has 2 stages"),
        ([stage(num_stages=2)], "num_stages 2: the schedule's path has 4 positions"),
        ([stage(), stage(stage_index=2)], r"stages \(0, 2\) on rank 0: must be \(0, 3\)"),
        ([stage(group_rank=1)], r"stages \(0,\) on rank 1: must be \(1, 2\)"),
    ],
)
def test_stages_that_are_not_those_of_the_rank_are_refused(stages: list[Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        runtime_of(parse_schedule(WAVE), stages, lambda output, target: output)


def test_a_rank_that_the_schedule_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2: must be from 0 to 1"):
        positions_of(parse_schedule(WAVE), 2)
