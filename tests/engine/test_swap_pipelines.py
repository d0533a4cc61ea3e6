"""What a swap plan is compared with: stages against trying all cuts, shared links against their bounds."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan.swap.events import Machine, atom_order, steady_step
from engine.plan.swap.layers import Layer, SubModel, sub_models
from engine.plan.swap.partition import Chain
from engine.plan.swap.pipeline_events import gpipe_wall_s, pipedream_wall_s
from engine.plan.swap.pipelines import Network, pipelines
from engine.plan.swap.stage_cuts import StageCuts
from engine.schedule.scenario import Link, Scenario, Times
from engine.simulate import simulate

LAYER = st.builds(
    lambda forward, backward, cut: Layer(
        name="x",
        memory_bytes=1.0,
        forward_s=float(forward),
        backward_s=float(backward),
        load_s=1.0,
        cut_bytes=cut,
        parameter_bytes=1.0,
    ),
    forward=st.integers(0, 4),
    backward=st.integers(1, 6),
    cut=st.integers(0, 4),
)
LAYERS = st.lists(LAYER, min_size=1, max_size=7)


@settings(max_examples=200, deadline=None)
@given(layers=LAYERS, stages=st.integers(1, 4), bytes_per_s=st.sampled_from([0.25, 1.0, 8.0]))
def test_stages_are_the_best_of_all_cuts(layers: list[Layer], stages: int, bytes_per_s: float) -> None:
    """Shortest beat, then least cut bytes, then shortest longest stage, then earliest cuts."""
    stages = min(stages, len(layers))

    def key(firsts: tuple[int, ...]) -> tuple[float, int, float, tuple[int, ...]]:
        parts = sub_models(layers, firsts)
        work = max(part.forward_s + part.backward_s for part in parts)
        cuts = [layers[part.last].cut_bytes for part in parts[:-1]]
        beat = max([work, *(cut / bytes_per_s for cut in cuts)])
        return beat, sum(cuts), work, firsts

    choices = [(0, *cuts) for cuts in itertools.combinations(range(1, len(layers)), stages - 1)]
    assert StageCuts(Chain(layers), stages).firsts(bytes_per_s) == min(choices, key=key)


PART = st.builds(
    lambda forward, backward: SubModel(
        first=0,
        last=0,
        memory_bytes=1,
        forward_s=float(forward),
        backward_s=float(backward),
        load_s=1,
        parameter_bytes=1,
    ),
    forward=st.integers(1, 4),
    backward=st.integers(1, 6),
)


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(PART, min_size=2, max_size=5), hop=st.integers(0, 12), microbatches=st.integers(1, 6))
def test_a_shared_link_is_bound_by_all_its_transfers_and_by_every_stage(
    parts: list[SubModel], hop: int, microbatches: int
) -> None:
    hops = [float(hop)] * (len(parts) - 1)
    traffic = 2.0 * sum(hops)
    longest = max(part.forward_s + part.backward_s for part in parts)
    alone = traffic + sum(part.forward_s + part.backward_s for part in parts)
    gpipe = gpipe_wall_s(parts, hops, microbatches, shared=True)
    assert max(traffic, longest) - 1e-9 <= gpipe <= alone + 1e-9
    assert gpipe_wall_s(parts, hops, 1, shared=True) == pytest.approx(alone)
    pipedream = pipedream_wall_s(parts, hops, shared=True)
    assert max(traffic, longest) - 1e-9 <= pipedream <= alone + 1e-9


@settings(max_examples=50, deadline=None)
@given(
    parts=st.lists(PART, min_size=2, max_size=5),
    hops=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    microbatches=st.integers(1, 6),
)
def test_with_a_link_for_each_hop_gpipe_is_what_the_simulator_says(
    parts: list[SubModel], hops: list[int], microbatches: int
) -> None:
    hops_s = [float(hop) for hop in hops[: len(parts) - 1]]
    scenario = Scenario(
        stages=len(parts),
        dc_of_stage=list(range(len(parts))),
        microbatches=microbatches,
        times=Times(forward=[part.forward_s for part in parts], backward=[part.backward_s for part in parts]),
        wan=[Link(transfer=hop) for hop in hops_s],
        policy="gpipe",
        spans=False,
    )
    ours = gpipe_wall_s(parts, hops_s, microbatches, shared=False) * microbatches
    assert ours == pytest.approx(simulate(scenario).makespan)


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(PART, min_size=1, max_size=5), hops=st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_pipedream_beats_no_faster_than_stage_link_and_mini_batches_in_flight(
    parts: list[SubModel], hops: list[int]
) -> None:
    """With P in flight a beat is at least a P-th of one mini-batch's way there and back."""
    hops_s = [float(hop) for hop in hops[: len(parts) - 1]]
    beat = pipedream_wall_s(parts, hops_s, shared=False)
    work = [part.forward_s + part.backward_s for part in parts]
    alone = sum(work) + 2 * sum(hops_s)
    assert max([*work, *hops_s, alone / len(parts)]) - 1e-9 <= beat <= alone + 1e-9


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(PART, min_size=2, max_size=2), hop=st.integers(0, 12), microbatches=st.integers(1, 6))
def test_one_hop_without_overlap_of_directions_is_the_same_shared_or_not(
    parts: list[SubModel], hop: int, microbatches: int
) -> None:
    """GPipe on two stages: by the simulator's links; a shared one may only add, and adds nothing at M = 1."""
    layers = [
        Layer(
            name="x",
            memory_bytes=1,
            forward_s=part.forward_s,
            backward_s=part.backward_s,
            load_s=0,
            cut_bytes=hop,
            parameter_bytes=0,
        )
        for part in parts
    ]
    ours = steady_step(
        parts[:1], atom_order(1), Machine(accumulation=1, gradients_out_bytes_per_s=None, room_bytes=None)
    )
    rows = {
        shared: pipelines(
            Chain(layers), Network(name="n", bytes_per_s=1.0, shared=shared), 2, microbatches, ours
        )
        for shared in (False, True)
    }
    for apart, together in zip(rows[False], rows[True], strict=True):
        assert together.seconds_per_minibatch_gpu >= apart.seconds_per_minibatch_gpu - 1e-9
        assert 0 < apart.utilization <= 1
    if microbatches == 1:
        gpipe = rows[True][0].seconds_per_minibatch_gpu
        assert gpipe == pytest.approx(rows[False][0].seconds_per_minibatch_gpu)


def test_pipedream_beats_at_its_slowest_stage_where_links_are_fast() -> None:
    layers = [
        Layer(
            name="x", memory_bytes=1, forward_s=f, backward_s=2 * f, load_s=0, cut_bytes=1, parameter_bytes=0
        )
        for f in (1.0, 3.0, 2.0)
    ]
    parts = sub_models(layers, (0,))
    machine = Machine(accumulation=1, gradients_out_bytes_per_s=None, room_bytes=None)
    ours = steady_step(parts, atom_order(1), machine)
    row = pipelines(Chain(layers), Network(name="n", bytes_per_s=1e12), 3, 4, ours)[1]
    assert row.policy == "pipedream"
    assert row.seconds_per_minibatch_gpu == pytest.approx(3 * 9.0)
    assert row.utilization == pytest.approx(18 / 27)
    assert row.speedup == pytest.approx(27 / 18)
