"""Training that runs otherwise than planned: the forecast follows, and prefill gives way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.prefill.bubbles import Interval, of_timeline
from engine.prefill.controller import Controller
from engine.prefill.forecast import CellForecast
from engine.prefill.index import Fleet
from engine.prefill.kernels.place import BEGIN, END, GPU, TOKENS
from engine.prefill.latency import LatencyModel
from engine.prefill.placement import Placement, Request, Settings
from engine.schedule.ir import NO_OP
from engine.schedule.scenario import Scenario
from engine.schedule.timing import Jitter, time_ops
from engine.simulate import simulate

SLOT_MS = 17.9
MODEL = LatencyModel(a_ms=4.0, b_ms=0.0656, c_ms=1.83e-6)
SCENARIO = parse(
    Scenario,
    {
        "stages": 4, "dc_of_stage": [0, 0, 1, 2], "pipelines": 2, "microbatches": 3,
        "times": {"forward": 1, "recompute": 1, "backward": 2}, "wan": {"transfer": 2}, "policy": "atlas",
    },
)  # fmt: skip
TIMELINE = simulate(SCENARIO).timeline
assert TIMELINE is not None
SCHEDULE = TIMELINE.schedule
PATTERN = of_timeline(TIMELINE, SLOT_MS, SCENARIO.dcs)


def forecast() -> CellForecast:
    return CellForecast(SCENARIO, SCHEDULE, SLOT_MS)


def controller(cells: int = 1, degree: int = 1, **changes: object) -> Controller:
    fleet = Fleet(pattern=PATTERN, phase_ms=(0.0,) * cells, pp_degree=degree)
    given = {"guard_ms": 1.0, "queue": 50, "chunk_tokens": 128, **changes}
    return Controller(fleet, MODEL, settings=Settings(**given))  # type: ignore[arg-type]


def test_what_is_foretold_at_first_is_the_plan() -> None:
    told = forecast()
    told.begin(1000.0)
    assert told.resume_ms == pytest.approx(1000 + PATTERN.period_ms)
    for rank, gaps in enumerate(told.bubbles()):
        busy = PATTERN.period_ms - sum(end - begin for begin, end in gaps)
        assert busy == pytest.approx(sum(e - b for b, e in PATTERN.busy[rank // 4][rank % 4]))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_with_every_signal_the_forecast_is_what_happened(seed: int) -> None:
    factors = np.random.default_rng(seed).uniform(0.8, 1.6, SCHEDULE.ops.shape)
    edges = len(SCHEDULE.traversal.places) - 1
    happened = time_ops(SCENARIO, SCHEDULE, Jitter(ops=factors, transfers=np.ones((2, edges, 2, 3))))
    told = forecast()
    told.begin(500.0)
    ends = [
        (500 + happened.op_end[p, s, i] * SLOT_MS, p, s, i) for p, s, i in np.argwhere(SCHEDULE.ops != NO_OP)
    ]
    for end_ms, p, s, i in sorted(ends):
        told.ended(p, s, i, end_ms)
        assert told.op(p, s, i)[1] == pytest.approx(end_ms)
    assert told.resume_ms == pytest.approx(500 + happened.makespan * SLOT_MS)


def test_a_late_op_moves_what_depends_on_it() -> None:
    told = forecast()
    before = told.op(0, 1, 0)
    assert told.ended(0, 0, 0, SLOT_MS + 30) == pytest.approx(30)
    assert told.op(0, 1, 0)[0] == pytest.approx(before[0] + 30)
    with pytest.raises(IndexError):
        told.ended(0, 3, SCHEDULE.ops.shape[2] - 1, 5.0)


def test_silence_is_lateness() -> None:
    told = forecast()
    assert not told.catch_up(SLOT_MS - 1)
    assert told.catch_up(SLOT_MS + 40)
    assert told.op(0, 0, 0)[1] == pytest.approx(SLOT_MS + 40)
    assert told.op(0, 1, 0)[0] >= SLOT_MS + 40 - 1e-6


def holds(placement: Placement, bubbles: dict[int, list[Interval]], now_ms: float, guard_ms: float) -> bool:
    """Whether every interval to come lies in a bubble of its GPU, with the guard."""
    return all(
        any(b - 1e-6 <= row[BEGIN] and row[END] + guard_ms <= e + 1e-6 for b, e in bubbles[int(row[GPU])])
        for row in placement.rows
        if row[BEGIN] > now_ms
    )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    late_ms=st.floats(0, 300),
    degree=st.sampled_from([1, 2]),
    now_share=st.floats(0.05, 0.9),
)
def test_prefill_gives_way_to_late_training(seed: int, late_ms: float, degree: int, now_share: float) -> None:
    random = np.random.default_rng(seed)
    placing = controller(cells=degree, degree=degree)
    accepted: dict[int | str, Placement] = {}
    for i, at in enumerate(np.sort(random.uniform(0, now_share * PATTERN.period_ms, 25))):
        answer = placing.offer(Request(id=i, tokens=int(random.integers(10, 5000)), arrival_ms=float(at)))
        if isinstance(answer, Placement):
            accepted[i] = answer
    now_ms = now_share * PATTERN.period_ms
    placing.advance(now_ms)
    told = forecast()
    told.ended(0, 0, 0, SLOT_MS + late_ms)
    moved = placing.training_moved(0, told.bubbles(), told.resume_ms)
    assert moved.lost == ()
    accepted |= {p.request.id: p for p in moved.moved}
    bubbles = {rank: list(gaps) for rank, gaps in enumerate(told.bubbles())}
    _resumed(bubbles, told.resume_ms)
    for cell in range(1, degree):
        for rank in range(PATTERN.gpus):
            gaps = PATTERN.bubbles(rank // 4, rank % 4)
            laps = [
                (b + n * PATTERN.period_ms, e + n * PATTERN.period_ms) for n in range(-1, 20) for b, e in gaps
            ]
            bubbles[cell * PATTERN.gpus + rank] = laps
    live = [p for p in accepted.values() if p.kv_done_ms > now_ms]
    assert all(holds(p, bubbles, now_ms, 1.0) for p in live)
    assert all(p.rows[::degree, TOKENS].sum() == p.request.tokens for p in accepted.values())
    to_come = np.concatenate([p.rows[p.rows[:, BEGIN] > now_ms] for p in live] or [np.zeros((0, 4))])
    for gpu in np.unique(to_come[:, GPU]):
        rows = to_come[to_come[:, GPU] == gpu]
        rows = rows[np.argsort(rows[:, BEGIN])]
        assert np.all(rows[1:, BEGIN] >= rows[:-1, END] - 1e-6)


def _resumed(bubbles: dict[int, list[Interval]], resume_ms: float) -> None:
    """Adds the iterations after the one that ran late; a bubble across the seam is one."""
    for rank, gaps in bubbles.items():
        own = PATTERN.bubbles(rank // 4, rank % 4)
        for lap in range(-1, 20):
            for begin, end in own:
                begin, end = (at + resume_ms + lap * PATTERN.period_ms for at in (begin, end))
                if end <= resume_ms:
                    continue
                if gaps and max(begin, resume_ms) <= gaps[-1][1] + 1e-6:
                    gaps[-1] = (gaps[-1][0], end)
                else:
                    gaps.append((max(begin, resume_ms), end))


def test_requests_that_cannot_be_helped_are_named() -> None:
    """A request that has begun goes on when training lets it: late, or beyond the horizon, lost."""
    nothing: list[tuple[Interval, ...]] = [()] * PATTERN.gpus
    for resume_ms, name in ((2000.0, "late"), (PATTERN.period_ms * 40, "lost")):
        placing = controller(ttft_slo_ms=1500.0)
        answer = placing.offer(Request(id="a", tokens=5000, arrival_ms=0.0))
        assert isinstance(answer, Placement)
        moved = placing.training_moved(0, nothing, resume_ms)
        assert [p.request.id for p in getattr(moved, name)] == ["a"]
        for placement in moved.moved:
            assert placement.pipeline == answer.pipeline
            assert placement.rows[0].tolist() == answer.rows[0].tolist()
            assert placement.rows[1, BEGIN] >= resume_ms
