"""CrossPipe's greedy: never worse than the static orders of its traversal, close to the proven optimum."""

from itertools import product

import numpy as np
import pytest

from engine.inputs import parse
from engine.schedule import Scenario, Schedule, Search, build, crosspipe
from engine.schedule.timing import time_ops
from engine.simulate import simulate

TRAVERSAL = {"ud": ("straight", 1), "udsub": ("straight", 2), "loop": ("loop", 2), "wave": ("wave", 2)}


def document(policy: str, *, stages: int, micro: int, split: bool, **fields: object) -> dict:
    times = {"forward": 1, "backward": 1, "weight": 1} if split else {"forward": 1, "backward": 2}
    half = stages // 2
    return {
        "policy": policy, "stages": stages, "dc_of_stage": [0] * half + [1] * (stages - half),
        "microbatches": micro, "times": times, "spans": False, **fields,
    }  # fmt: skip


def over_optimum(family: str, stages: int, micro: int, seconds: float) -> list[float]:
    """Makespans of the greedy over those of the solver (its bound where it did not finish), over the grid."""
    traversal, chunks = TRAVERSAL[family]
    ratios = []
    for split, limit, latency, transfer in product((False, True), (stages, 2 * stages), (0, 1, 2), (0, 1, 2)):
        fields = {"memory_limit": limit, "wan": {"latency": latency, "transfer": transfer}}
        cell = document(f"crosspipe-{family}", stages=stages, micro=micro, split=split, **fields)
        greedy = simulate(parse(Scenario, cell))
        assert greedy.lower_bound <= greedy.makespan * (1 + 1e-9)
        if greedy.optimal:
            ratios.append(1.0)
            continue
        asked = {"policy": "optimal", "traversal": traversal, "chunks": chunks, "time_limit_s": seconds}
        best = simulate(parse(Scenario, {**cell, **asked}))
        assert best.lower_bound <= greedy.makespan * (1 + 1e-9)
        ratios.append(greedy.makespan / best.makespan)
    return ratios


def test_close_to_the_optimum_on_small_cells() -> None:
    ratios = over_optimum("ud", 4, 6, 5.0)
    assert np.mean(ratios) <= 1.03
    assert max(ratios) <= 1.10


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "stages", "micro"), [("ud", 8, 16), ("wave", 4, 6), ("loop", 4, 6), ("udsub", 4, 6)]
)
def test_close_to_the_optimum(family: str, stages: int, micro: int) -> None:
    ratios = over_optimum(family, stages, micro, 10.0)
    assert np.mean(ratios) <= 1.03
    assert max(ratios) <= 1.10


@pytest.mark.parametrize(
    ("greedy", "static"), [("ud", "1f1b"), ("ud", "zb-h1"), ("loop", "interleaved"), ("wave", "zb-v")]
)
@pytest.mark.parametrize("delay", [0, 1.3])
def test_never_worse_than_the_static_order(greedy: str, static: str, delay: float) -> None:
    for split, limit in product((False, True), (6, None)):
        fields = {"memory_limit": limit, "wan": {"latency": delay, "transfer": delay}, "pipelines": 2}
        cells = [
            parse(Scenario, document(policy, stages=6, micro=9, split=split, **fields))
            for policy in (f"crosspipe-{greedy}", static)
        ]
        ours, theirs = (simulate(cell).makespan for cell in cells)
        assert theirs is None or ours <= theirs * (1 + 1e-9), (split, limit)


def test_the_order_of_messages_counts_in_a_wave() -> None:
    # The same ops with every link first in, first out (systems.md §3).
    fields = {"memory_limit": 8, "wan": {"latency": 0.25, "transfer": 2}}
    scenario = parse(Scenario, document("crosspipe-wave", stages=8, micro=16, split=True, **fields))
    chosen = build(scenario).schedule
    assert chosen.link_order
    fifo = Schedule(
        microbatches=chosen.microbatches, traversal=chosen.traversal, ops=chosen.ops, sharing=chosen.sharing,
        link_order={}, recompute_gate=chosen.recompute_gate,
    )  # fmt: skip
    assert time_ops(scenario, fifo).makespan > 1.01 * time_ops(scenario, chosen).makespan


@pytest.mark.parametrize("family", TRAVERSAL)
@pytest.mark.parametrize(
    "limits", [{"memory_limit": 1}, {"memory_limit": 1, "full_limit": 1}, {"full_limit": 1}]
)
def test_the_tightest_limits_never_deadlock(family: str, limits: dict) -> None:
    for split, pipelines in product((False, True), (1, 2)):
        cell = document(f"crosspipe-{family}", stages=5, micro=5, split=split, pipelines=pipelines, **limits)
        cell["times"]["recompute"] = [1, 0, 1, 0.5, 1]
        result = simulate(parse(Scenario, {**cell, "sharing": "temporal", "wan": {"transfer": 2}}))
        assert result.feasible
        assert result.timeline.peak_in_flight().max() <= limits.get("memory_limit", 5)


def test_a_cancelled_search_returns_the_best_it_has() -> None:
    scenario = parse(Scenario, document("crosspipe-wave", stages=8, micro=16, split=True, wan={"latency": 2}))
    told = []
    search = Search(cancelled=lambda: bool(told), report=told.append)
    built = build(scenario, search)
    assert len(told) == 1
    assert time_ops(scenario, built.schedule).makespan <= told[0].makespan * (1 + 1e-9)


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crosspipe, "MOST_STARTED", 0)
    scenario = parse(Scenario, document("crosspipe-loop", stages=8, micro=16, split=True, wan={"latency": 2}))
    assert build(scenario).chosen.idea == "tempo 0.5, patience 0.5"


def test_sub_blocks_are_never_worse_than_whole_stages() -> None:
    for split, limit, latency in product((False, True), (3, 6), (0, 1.5)):
        fields = {"memory_limit": limit, "wan": {"latency": latency, "transfer": 0.5}}
        whole, cut = (
            simulate(parse(Scenario, document(policy, stages=6, micro=9, split=split, **fields))).makespan
            for policy in ("crosspipe-ud", "crosspipe-udsub")
        )
        assert cut <= whole * (1 + 1e-9), (split, limit, latency)
