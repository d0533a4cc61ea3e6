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
        "policy": policy,
        "stages": stages,
        "dc_of_stage": [0] * half + [1] * (stages - half),
        "microbatches": micro,
        "times": times,
        "spans": False,
        **fields,
    }


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Kernels are compiled before any search has a limit of time."""
    for family in TRAVERSAL:
        build(parse(Scenario, document(f"crosspipe-{family}", stages=2, micro=2, split=True)))


def above(family: str, *, split: bool, limit: int, latency: float, transfer: float, seconds: float) -> float:
    """Share by which the greedy at P = 8, M = 16 exceeds what is proven of its traversal."""
    fields = {"memory_limit": limit, "wan": {"latency": latency, "transfer": transfer}}
    cell = document(f"crosspipe-{family}", stages=8, micro=16, split=split, **fields)
    greedy = simulate(parse(Scenario, {**cell, "time_limit_s": 3600}))
    proven = greedy.lower_bound
    if seconds and not greedy.optimal:
        traversal, chunks = TRAVERSAL[family]
        solver = {"policy": "optimal", "traversal": traversal, "chunks": chunks, "time_limit_s": seconds}
        proven = max(proven, simulate(parse(Scenario, {**cell, **solver})).lower_bound)
    assert proven <= greedy.makespan * (1 + 1e-9)
    return greedy.makespan / proven - 1


@pytest.mark.parametrize(
    ("family", "split", "latency", "transfer", "most"),
    [
        ("udsub", True, 2, 2, 0.01),
        ("udsub", False, 0.25, 0.25, 0.03),
        ("loop", True, 2, 1, 0.03),
        ("loop", True, 0, 0, 0.01),
        ("wave", True, 2, 1, 0.03),
        ("wave", False, 1, 1, 0.03),
    ],
)
def test_close_to_what_is_proven(
    family: str, split: bool, latency: float, transfer: float, most: float
) -> None:
    gap = above(family, split=split, limit=8, latency=latency, transfer=transfer, seconds=0)
    assert gap <= most


@pytest.mark.long
@pytest.mark.parametrize("family", TRAVERSAL)
def test_close_to_the_optimum(family: str) -> None:
    seconds = 10.0 if family == "ud" else 0.0
    gaps = [
        above(family, split=split, limit=limit, latency=latency, transfer=transfer, seconds=seconds)
        for split, limit, latency, transfer in product((False, True), (8, 16), (0, 2), (0, 2))
    ]
    assert np.mean(gaps) <= 0.03
    assert max(gaps) <= 0.10


@pytest.mark.parametrize(
    ("greedy", "static"), [("ud", "1f1b"), ("ud", "zb-h1"), ("loop", "interleaved"), ("wave", "zb-v")]
)
@pytest.mark.parametrize("delay", [0, 1.3])
def test_never_worse_than_the_static_order(greedy: str, static: str, delay: float) -> None:
    for split, limit in product((False, True), (4, None)):
        fields = {"memory_limit": limit, "wan": {"latency": delay, "transfer": delay}, "pipelines": 2}
        cells = [
            parse(Scenario, document(policy, stages=4, micro=6, split=split, **fields))
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
        microbatches=chosen.microbatches,
        traversal=chosen.traversal,
        ops=chosen.ops,
        sharing=chosen.sharing,
        link_order={},
        recompute_gate=chosen.recompute_gate,
    )
    assert time_ops(scenario, fifo).makespan > 1.01 * time_ops(scenario, chosen).makespan


@pytest.mark.parametrize("family", TRAVERSAL)
@pytest.mark.parametrize(
    "limits", [{"memory_limit": 1}, {"memory_limit": 1, "full_limit": 1}, {"full_limit": 1}]
)
def test_the_tightest_limits_never_deadlock(family: str, limits: dict) -> None:
    for split, pipelines in product((False, True), (1, 2)):
        cell = document(f"crosspipe-{family}", stages=4, micro=4, split=split, pipelines=pipelines, **limits)
        cell["times"]["recompute"] = [1, 0, 0.5, 1]
        result = simulate(parse(Scenario, {**cell, "sharing": "temporal", "wan": {"transfer": 2}}))
        assert result.feasible
        assert result.timeline.peak_in_flight().max() <= limits.get("memory_limit", 4)


def test_a_cancelled_search_returns_the_best_it_has() -> None:
    scenario = parse(Scenario, document("crosspipe-wave", stages=8, micro=16, split=True, wan={"latency": 2}))
    reports = []
    search = Search(cancelled=lambda: bool(reports), report=reports.append)
    built = build(scenario, search)
    assert len(reports) == 1
    assert time_ops(scenario, built.schedule).makespan <= reports[0].makespan * (1 + 1e-9)


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
