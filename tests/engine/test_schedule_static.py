"""Static orders against those that torch.distributed.pipelining generates, and against closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.schedule import Scenario, build
from engine.schedule.text import parse_schedule
from engine.schedule.timing import time_ops
from engine.simulate import simulate

KINDS = {"FORWARD": 0, "BACKWARD_INPUT": 2, "FULL_BACKWARD": 2, "BACKWARD_WEIGHT": 3}
TORCH = {
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zb-h1": ("ScheduleInterleavedZeroBubble", 1),
    "zb-v": ("ScheduleZBVZeroBubble", 2),
}


def torch_order(policy: str, stages: int, micro: int, chunks: int) -> list[list[int]]:
    """The op codes of each rank from the generators of PyTorch, made without process groups."""
    module = pytest.importorskip("torch.distributed.pipelining.schedules")
    cls = getattr(module, TORCH[policy][0])
    maker = cls.__new__(cls)
    maker.pp_group_size = maker._num_stages = stages
    maker.num_stages, maker.n_local_stages = stages * chunks, chunks
    maker._n_microbatches = micro
    maker.number_of_rounds = max(1, micro // stages)
    maker.microbatches_per_round = micro // maker.number_of_rounds
    if policy == "1f1b":
        ranks = maker._get_pipeline_order()
    else:
        ranks = {rank: maker._calculate_single_rank_operations(rank) for rank in range(stages)}
    # PyTorch's displayed 1F1B numbers the forwards of the last rank 1 … M instead of 0 … M − 1.
    slips = {rank: policy == "1f1b" and rank == stages - 1 for rank in ranks}
    return [
        [
            ((a.stage_index // stages) * micro + a.microbatch_index - (slips[rank] and kind == 0)) * 4 + kind
            for a in ranks[rank]
            if a is not None and (kind := KINDS.get(a.computation_type.name)) is not None
        ]
        for rank in range(stages)
    ]


def document(policy: str, stages: int, micro: int, **fields: object) -> dict:
    times = {"forward": 1, "backward": 1, "weight": 1 if policy.startswith("zb") else 0}
    return {"policy": policy, "stages": stages, "microbatches": micro, "times": times, **fields}


@pytest.mark.parametrize(
    ("policy", "chunks"), [("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-v", 2)]
)
def test_orders_are_those_of_pytorch(policy: str, chunks: int) -> None:
    for stages in range(1, 7):
        for micro in range(stages if policy == "1f1b" else 1, 18):
            if micro % max(1, micro // stages):
                continue  # PyTorch refuses these
            built = build(parse(Scenario, document(policy, stages, micro, chunks=chunks)))
            ours = [[int(code) for code in row if code >= 0] for row in built.schedule.ops[0]]
            assert ours == torch_order(policy, stages, micro, chunks), (stages, micro)


@pytest.mark.parametrize(("policy", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2)])
def test_makespans_are_those_of_pytorchs_orders(policy: str, chunks: int) -> None:
    weight = 0.9 if policy.startswith("zb") else 0
    fields = {
        "dc_of_stage": [0, 0, 1, 1],
        "pipelines": 2,
        "wan": {"latency": 1.5, "transfer": 0.7},
        "times": {"forward": [1, 1.1, 1, 1.2], "backward": 2.1, "weight": weight},
    }
    scenario = parse(Scenario, document(policy, 4, 12, **fields))
    result = simulate(scenario)
    head = f"microbatches 12, chunks {chunks}, traversal {result.traversal.name}, sharing spatial, gate none"
    rows = []
    for pipeline in range(2):
        for rank, codes in enumerate(torch_order(policy, 4, 12, chunks)):
            ops = (("FRBW"[code & 3], code >> 2) for code in codes)
            rows.append(f"P{pipeline} S{rank}: " + " ".join(f"{kind}{i % 12}.{i // 12}" for kind, i in ops))
    assert time_ops(scenario, parse_schedule("\n".join([head, *rows]))).makespan == result.makespan


SMALL = st.integers(1, 6)


@given(stages=SMALL, more=st.integers(0, 6), forward=SMALL, back=SMALL, weight=SMALL)
@settings(max_examples=60, deadline=None)
def test_zb_h1_without_delay(stages, more, forward, back, weight) -> None:
    # Qi et al., Table 2: bubbles (P − 1)(F + B − W), if B is not shorter than F and W not longer than either.
    times = {"forward": forward, "backward": max(forward, back), "weight": min(weight, forward, back)}
    micro = 2 * stages + more
    slots = simulate(parse(Scenario, document("zb-h1", stages, micro, times=times))).makespan
    each = sum(times.values())
    assert slots == micro * each + (stages - 1) * (each - 2 * times["weight"])


@given(stages=SMALL, rounds=SMALL, chunks=st.integers(2, 4), forward=SMALL, back=SMALL)
@settings(max_examples=60, deadline=None)
def test_interleaved_without_delay(stages, rounds, chunks, forward, back) -> None:
    # Narayanan et al., §2.2: bubbles (P − 1)(F + B) / C.
    times = {"forward": forward, "backward": back}
    result = simulate(
        parse(Scenario, document("interleaved", stages, stages * rounds, times=times, chunks=chunks))
    )
    assert result.makespan == pytest.approx((stages * rounds + (stages - 1) / chunks) * (forward + back))


@given(stages=SMALL, more=st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_zb_v_has_no_bubbles_where_all_ops_are_equal(stages, more) -> None:
    # The last stage waits P − 1 half forwards for its first op; after that every stage works without a break.
    result = simulate(parse(Scenario, document("zb-v", stages, 2 * stages + more)))
    assert result.timeline.stage_spans() == pytest.approx(3.0 * (2 * stages + more))


@pytest.mark.parametrize("policy", ["1f1b", "zb-h1", "interleaved"])
def test_no_shape_and_no_limit_deadlocks(policy: str) -> None:
    for stages in range(1, 7):
        for micro in range(1, 14):
            for limit in (None, 1, 2, 3):
                for chunks in (2, 3) if policy == "interleaved" else (1,):
                    fields = {"memory_limit": limit, "chunks": chunks}
                    result = simulate(parse(Scenario, document(policy, stages, micro, **fields)))
                    assert limit is None or result.timeline.peak_in_flight().max() <= limit, (stages, micro)


def test_zb_v_says_how_much_memory_it_lacks() -> None:
    answer = build(parse(Scenario, document("zb-v", 4, 8, memory_limit=3)))
    assert isinstance(answer, Infeasible)
    assert answer.reason == "memory_limit: ZB-V holds 4 microbatches on a stage; 3 allowed"


@pytest.mark.parametrize(
    ("policy", "fields", "message"),
    [
        ("interleaved", {"chunks": 1}, "2 to 64"),
        ("interleaved", {"traversal": "wave"}, "loop"),
        ("zb-v", {"chunks": 3}, "has 2 per stage"),
        ("zb-h1", {"chunks": 2}, "has 1 per stage"),
        ("1f1b", {"traversal": "loop"}, "straight"),
    ],
)
def test_what_a_static_order_does_not_know_is_refused(policy: str, fields: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(parse(Scenario, document(policy, 4, 8, **fields)))


@pytest.mark.parametrize("policy", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"])
def test_sharing_a_link_changes_when_ops_run_but_not_their_order(policy: str) -> None:
    document = {
        "stages": 4,
        "dc_of_stage": [0, 0, 1, 1],
        "pipelines": 3,
        "microbatches": 8,
        "policy": policy,
        "times": {"forward": 1, "backward": 2, "recompute": 1, "weight": 1},
        "wan": {"transfer": 2, "latency": 1},
    }
    scenarios = (parse(Scenario, {**document, "sharing": sharing}) for sharing in ("spatial", "temporal"))
    alone, shared = (build(scenario).schedule for scenario in scenarios)
    assert shared.link_order
    assert np.array_equal(alone.ops, shared.ops)
