"""Training that runs otherwise than planned: prefill gives way."""

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.prefill.bubbles import Interval, TrainingPattern, joined, of_timeline
from engine.prefill.controller import Controller
from engine.prefill.index import Fleet
from engine.prefill.kernels.place import BEGIN, END, GPU, TOKENS
from engine.prefill.latency import LatencyModel
from engine.prefill.placement import Placement, PlacementQuery, Settings
from engine.schedule.scenario import Scenario
from engine.schedule.timing import Jitter, time_ops
from engine.simulate import Timeline, simulate

SLOT_MS = 17.9
MODEL = LatencyModel(a_ms=4.0, b_ms=0.0656, c_ms=1.83e-6)
SCENARIO = parse(
    Scenario,
    {
        "stages": 4,
        "dc_of_stage": [0, 0, 1, 2],
        "pipelines": 2,
        "microbatches": 3,
        "times": {"forward": 1, "recompute": 1, "backward": 2},
        "wan": {"transfer": 2},
        "policy": "atlas",
    },
)


@cache
def timeline() -> Timeline:
    """Not made at import: every process that collects tests would compile the simulator's kernels."""
    spans = simulate(SCENARIO).timeline
    assert spans is not None
    return spans


@cache
def pattern() -> TrainingPattern:
    return of_timeline(timeline(), SLOT_MS, SCENARIO.dcs)


def late_iteration(late_ms: float) -> tuple[list[tuple[Interval, ...]], float]:
    """The bubbles of an iteration whose first op takes `late_ms` longer, by rank; when the next begins."""
    schedule = timeline().schedule
    edges = len(schedule.traversal.positions) - 1
    jitter = Jitter(ops=np.ones(schedule.ops.shape), transfers=np.ones((2, edges, 2, 3)))
    jitter.ops[0, 0, 0] = 1 + late_ms / SLOT_MS
    timing = time_ops(SCENARIO, schedule, jitter)
    resume_ms = timing.makespan * SLOT_MS
    bubbles = []
    for p, s in np.ndindex(2, 4):
        begins, ends = timing.op_start[p, s] * SLOT_MS, timing.op_end[p, s] * SLOT_MS
        busy = joined(zip(begins.tolist(), ends.tolist(), strict=True))
        edges_ms = zip(
            (0.0, *(end for _, end in busy)), (*(begin for begin, _ in busy), resume_ms), strict=True
        )
        bubbles.append(tuple((begin, end) for begin, end in edges_ms if end > begin))
    return bubbles, resume_ms


def controller(cells: int = 1, degree: int = 1, **changes: object) -> Controller:
    fleet = Fleet(pattern=pattern(), phase_ms=(0.0,) * cells, pp_degree=degree)
    given = {"guard_ms": 1.0, "queue": 50, "chunk_tokens": 128, **changes}
    return Controller(fleet, MODEL, settings=Settings(**given))  # type: ignore[arg-type]


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
    for i, at in enumerate(np.sort(random.uniform(0, now_share * pattern().period_ms, 25))):
        answer = placing.offer(
            PlacementQuery(id=i, tokens=int(random.integers(10, 5000)), arrival_ms=float(at))
        )
        if isinstance(answer, Placement):
            accepted[i] = answer
    now_ms = now_share * pattern().period_ms
    placing.advance(now_ms)
    foretold, resume_ms = late_iteration(late_ms)
    moved = placing.training_moved(0, foretold, resume_ms)
    assert moved.lost == ()
    for p in moved.moved:
        before, table = accepted[p.request.id].rows, p.rows.reshape(-1, degree, 4)
        begun = {tuple(row) for row in before[before[:, BEGIN] <= now_ms].tolist()}
        assert begun <= {tuple(row) for row in p.rows.tolist()}, (
            "what has begun on any stage is not run again"
        )
        assert np.all(table[:, 1:, BEGIN] >= table[:, :-1, END] - 1e-6), "a stage follows the one before"
        assert np.all(table[1:, :, BEGIN] >= table[:-1, :, END] - 1e-6), "a chunk follows the one before"
        assert np.all(table[:, :, TOKENS] == table[:, :1, TOKENS])
    accepted |= {p.request.id: p for p in moved.moved}
    bubbles = {rank: list(gaps) for rank, gaps in enumerate(foretold)}
    _resumed(bubbles, resume_ms)
    for cell in range(1, degree):
        for rank in range(pattern().gpus):
            gaps = pattern().bubbles(rank // 4, rank % 4)
            laps = [
                (b + n * pattern().period_ms, e + n * pattern().period_ms)
                for n in range(-1, 20)
                for b, e in gaps
            ]
            bubbles[cell * pattern().gpus + rank] = laps
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
        own = pattern().bubbles(rank // 4, rank % 4)
        for lap in range(-1, 20):
            for begin, end in own:
                begin, end = (at + resume_ms + lap * pattern().period_ms for at in (begin, end))
                if end <= resume_ms:
                    continue
                if gaps and max(begin, resume_ms) <= gaps[-1][1] + 1e-6:
                    gaps[-1] = (gaps[-1][0], end)
                else:
                    gaps.append((max(begin, resume_ms), end))


def test_requests_that_cannot_be_helped_are_named() -> None:
    """A request that has begun goes on when training lets it: late, or beyond the horizon, lost."""
    nothing: list[tuple[Interval, ...]] = [()] * pattern().gpus
    for resume_ms, name in ((2000.0, "late"), (pattern().period_ms * 40, "lost")):
        placing = controller(ttft_slo_ms=1500.0)
        answer = placing.offer(PlacementQuery(id="a", tokens=5000, arrival_ms=0.0))
        assert isinstance(answer, Placement)
        moved = placing.training_moved(0, nothing, resume_ms)
        assert [p.request.id for p in getattr(moved, name)] == ["a"]
        for placement in moved.moved:
            assert placement.pipeline == answer.pipeline
            assert placement.rows[0].tolist() == answer.rows[0].tolist()
            assert placement.rows[1, BEGIN] >= resume_ms
