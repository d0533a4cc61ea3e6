"""The bubble index against a plain one that knows lists of free intervals and looks at all of them."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.prefill.bubbles import Interval, TrainingPattern
from engine.prefill.index import BubbleIndex, Fit, Fleet
from engine.prefill.kernels.place import BEGIN, END, GPU, TOKENS
from engine.prefill.latency import Hop, LatencyModel

MODEL = LatencyModel(a_ms=1.0, b_ms=0.02, c_ms=1e-6)
PERIOD_MS, HORIZON_MS = 100.0, 800.0


@st.composite
def patterns(draw: st.DrawFn) -> TrainingPattern:
    """Up to 2 × 3 GPUs, each with up to three ops of whole ms in a period of 100."""
    pipelines, stages = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    busy = []
    for _ in range(pipelines):
        row = []
        for _ in range(stages):
            edges = sorted(draw(st.sets(st.integers(0, 100), max_size=6)))
            edges = edges[: len(edges) // 2 * 2]
            row.append(tuple((float(b), float(e)) for b, e in zip(edges[::2], edges[1::2], strict=True)))
        busy.append(tuple(row))
    return TrainingPattern(period_ms=PERIOD_MS, busy=tuple(busy), dc_of_stage=tuple(range(stages)))


@dataclass
class Plain:
    """What is free, by brute force: times of 0.5 ms on a line would do, but intervals are exact."""

    fleet: Fleet
    guard_ms: float
    taken: dict[int, list[Interval]] = field(default_factory=dict)

    def gaps(self, gpu: int, now_ms: float) -> list[Interval]:
        """Free intervals of one GPU from `now_ms` on, in order."""
        cell, pipeline, stage = self.fleet.location(gpu)
        shift = self.fleet.phase_ms[cell]
        busy = sorted(
            (b + shift + lap * PERIOD_MS, e + shift + lap * PERIOD_MS)
            for lap in range(-2, 40)
            for b, e in self.fleet.pattern.busy[pipeline][stage]
        )
        walls = sorted([(b - self.guard_ms, e) for b, e in busy] + self.taken.get(gpu, []))
        free, at = [], now_ms
        for begin, end in walls:
            if begin > at:
                free.append((at, begin))
            at = max(at, end)
        return [*free, (at, math.inf)]

    def first_begin(self, tokens: int, chunk: int, at_ms: float, dc: int | None, degree: int) -> float:
        """When the first stage of any pipeline could begin the request's smallest first chunk."""
        need = MODEL.stage_ms(min(tokens, chunk), degree)
        begins = [
            max(b, at_ms)
            for gpu in range(self.fleet.gpus)
            if (gpu // self.fleet.pattern.gpus) % degree == 0
            and (dc is None or self.fleet.location(gpu)[2] == dc)
            for b, e in self.gaps(gpu, at_ms)
            if e - max(b, at_ms) >= need - 1e-9
        ]
        return min(begins, default=math.inf)


def check(fit: Fit, plain: Plain, tokens: int, chunk: int, at_ms: float, degree: int) -> None:
    rows = fit.rows.reshape(-1, degree, 4)
    assert rows[:, 0, TOKENS].sum() == tokens
    done = 0
    for number, stages in enumerate(rows):
        size = int(stages[0, TOKENS])
        assert size >= min(chunk, tokens - done)
        for j, row in enumerate(stages):
            assert row[END] - row[BEGIN] == pytest.approx(MODEL.stage_ms(size, degree, done=done))
            free = plain.gaps(int(row[GPU]), at_ms)
            assert any(b - 1e-6 <= row[BEGIN] and row[END] <= e + 1e-6 for b, e in free)
            assert j == 0 or row[BEGIN] >= stages[j - 1, END] - 1e-9
            assert number == 0 or row[BEGIN] >= rows[number - 1, j, END] - 1e-9
            assert int(row[GPU]) - int(stages[0, GPU]) == j * plain.fleet.pattern.gpus
        done += size


@settings(max_examples=40, deadline=None)
@given(
    pattern=patterns(),
    cells=st.sampled_from([1, 2, 4]),
    degree=st.sampled_from([1, 2]),
    shifted=st.booleans(),
    guard=st.sampled_from([0.0, 1.5]),
    chunk=st.sampled_from([None, 50, 400]),
    offers=st.lists(
        st.tuples(
            st.integers(1, 2500), st.floats(0, 40), st.sampled_from(["take", "give", "look"]), st.booleans()
        ),
        min_size=1,
        max_size=25,
    ),
)
def test_it_begins_requests_as_soon_as_brute_force(
    pattern: TrainingPattern,
    cells: int,
    degree: int,
    shifted: bool,
    guard: float,
    chunk: int | None,
    offers: list[tuple[int, float, str, bool]],
) -> None:
    if cells % degree:
        degree = 1
    phases = tuple(13.0 * cell if shifted else 0.0 for cell in range(cells))
    fleet = Fleet(pattern=pattern, phase_ms=phases, pp_degree=degree)
    index = BubbleIndex(fleet, MODEL, Hop(), chunk=chunk, guard_ms=guard, horizon_ms=HORIZON_MS)
    plain, now_ms, held = Plain(fleet, guard), 0.0, []
    for tokens, wait_ms, what, one_dc in offers:
        now_ms += wait_ms
        index.advance(now_ms)
        dc = 0 if one_dc else None
        least = min(tokens, chunk or tokens)
        fit = index.find(tokens, chunk=least, not_before_ms=now_ms, dc=-1 if dc is None else dc)
        expected = plain.first_begin(tokens, least, now_ms, dc, degree)
        if fit is None:
            # Only for want of a place within the horizon, which a chunked request may need on every stage.
            assert degree > 1 or tokens > least or expected > now_ms + HORIZON_MS - 3 * PERIOD_MS
            continue
        assert degree > 1 or fit.start_ms == pytest.approx(expected, abs=1e-6)
        assert fit.start_ms >= expected - 1e-6
        check(fit, plain, tokens, least, now_ms, degree)
        if what == "look":
            continue
        index.take(fit.rows)
        held.append(fit)
        for row in fit.rows:
            plain.taken.setdefault(int(row[GPU]), []).append((float(row[BEGIN]), float(row[END])))
        ahead = [one for one in held if one.start_ms > now_ms]
        if what == "give" and ahead:
            back = ahead[0]
            held = [one for one in held if one is not back]
            index.give(back.rows)
            for row in back.rows:
                plain.taken[int(row[GPU])].remove((float(row[BEGIN]), float(row[END])))


def test_nothing_is_taken_twice() -> None:
    pattern = TrainingPattern(period_ms=100.0, busy=((((0.0, 50.0),),),), dc_of_stage=(0,))
    index = BubbleIndex(
        Fleet(pattern=pattern, phase_ms=(0.0,)), MODEL, Hop(), chunk=None, guard_ms=1.0, horizon_ms=500.0
    )
    row = np.array([[0, 60.0, 70.0, 1]])
    index.find(1, chunk=1, not_before_ms=0.0)  # fills the row
    index.take(row)
    with pytest.raises(ValueError, match="not free"):
        index.take(row + np.array([0, 5, 5, 0]))
    assert not index.try_take(np.array([[0, 98.0, 99.5, 1]]))  # the guard
    index.give(row)
    assert index.free(0)[0] == (50.0, 99.0)


def test_idle_gpus_have_one_endless_bubble() -> None:
    pattern = TrainingPattern(period_ms=100.0, busy=((((0.0, 50.0),), ()),), dc_of_stage=(0, 1))
    assert pattern.longest_bubble_ms() == math.inf
    assert pattern.bubbles(0, 1) == ((0.0, 100.0),)


@settings(max_examples=15, deadline=None)
@given(
    pattern=patterns(),
    cells=st.sampled_from([2, 4]),
    degree=st.sampled_from([1, 2]),
    tokens=st.lists(st.integers(1, 2500), min_size=1, max_size=8),
)
def test_a_pattern_of_many_cells_is_as_many_cells_of_a_pattern(
    pattern: TrainingPattern, cells: int, degree: int, tokens: list[int]
) -> None:
    joint = replace(pattern, busy=pattern.busy * cells)
    fleets = (
        Fleet(pattern=pattern, phase_ms=(0.0,) * cells, pp_degree=degree),
        Fleet(pattern=joint, phase_ms=(0.0,), pp_degree=degree, cells_of_pattern=cells),
    )
    fit = []
    for fleet in fleets:
        index = BubbleIndex(fleet, MODEL, Hop(fixed_ms=0.5), chunk=50, guard_ms=1.0, horizon_ms=HORIZON_MS)
        rows = []
        for count in tokens:
            place = index.find(count, chunk=min(count, 50), not_before_ms=0.0)
            if place is not None:
                index.take(place.rows)
                rows.append(place.rows.tolist())
        fit.append(rows)
    assert fit[0] == fit[1]


def test_cells_must_make_whole_pipelines() -> None:
    pattern = TrainingPattern(period_ms=100.0, busy=((((0.0, 50.0),),),), dc_of_stage=(0,))
    with pytest.raises(InputError, match="pp_degree"):
        Fleet(pattern=pattern, phase_ms=(0.0,) * 3, pp_degree=2)
    with pytest.raises(InputError, match="cells_of_pattern"):
        Fleet(pattern=pattern, phase_ms=(0.0,), cells_of_pattern=2)
