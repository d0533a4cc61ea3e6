"""What a coordinator learns of a cell from the ends of its ops."""

import pytest

from engine.prefill.observed import FEWEST, KEPT, ObservedCell
from engine.prefill.slowdown import CLEAN_TO_RESUME, SlowDown
from engine.prefill.slowdown import FEWEST as FEWEST_OF_EACH

PERIOD = 100.0
# Two stages: F and B each; the second stage's B ends long before the first's, whose tail ends the iteration.
OPS = {0: [(0.0, 10.0), (60.0, 99.0)], 1: [(20.0, 30.0), (30.0, 50.0)]}


def cell(iterations: int = 6, *, early_ms: float = 0.0) -> ObservedCell:
    """One that saw so many iterations, and the first op of another; every third B of stage 0 is early."""
    seen = ObservedCell([2, 2], stages=2)
    for n in range(iterations):
        for gpu, ops in OPS.items():
            off = early_ms if gpu == 0 and n % 3 == 0 else 0.0
            (first, end), (second, last) = ((n * PERIOD + b, n * PERIOD + e) for b, e in ops)
            if gpu == 0:
                seen.begun(n, first)
            seen.ran(gpu, n, [first, second - off], [end, last])
    seen.begun(iterations, iterations * PERIOD)
    return seen


def test_nothing_is_known_before_a_few_iterations() -> None:
    assert not cell(FEWEST - 1).knows
    assert cell(FEWEST).knows


def test_pattern_and_bubbles_are_those_of_the_ops() -> None:
    seen = cell()
    pattern = seen.pattern()
    assert seen.period_ms == PERIOD
    assert pattern.busy == ((((0.0, 10.0), (60.0, 99.0)), ((20.0, 50.0),)),)
    assert seen.begin_ms == 600.0
    assert seen.bubbles(pattern, seen.resume_ms(610.0)) == [
        ((610.0, 660.0), (699.0, 700.0)),
        ((600.0, 620.0), (650.0, 700.0)),
    ]


def test_what_reaches_into_the_next_iteration_lies_at_its_begin() -> None:
    seen = ObservedCell([1, 1], stages=2)
    for n in range(6):
        seen.begun(n, n * PERIOD)
        seen.ran(0, n, [n * PERIOD], [n * PERIOD + 40])
        seen.ran(1, n, [n * PERIOD + 50], [n * PERIOD + 120])
    assert seen.pattern().busy[0][1] == ((0.0, 20.0), (50.0, 100.0))


@pytest.mark.parametrize(
    ("gpu", "at_ms", "op", "begins_ms"),
    [
        (0, 610.0, (6, 1), 660.0),
        (0, 699.5, (7, 0), 700.0),
        (1, 600.0, (6, 0), 620.0),
        (1, 655.0, (7, 0), 720.0),
        (1, 1955.0, (20, 0), 2020.0),
    ],
)
def test_an_interval_lies_before_an_op(gpu: int, at_ms: float, op: tuple[int, int], begins_ms: float) -> None:
    assert cell().next_op(gpu, at_ms, resume_ms=700.0) == (op, begins_ms)


def test_an_iteration_that_does_not_begin_moves_all_that_comes() -> None:
    seen = cell()
    assert not seen.overdue(709.0)
    assert seen.overdue(740.0)
    assert seen.resume_ms(740.0) == 740.0
    assert seen.next_op(1, 755.0, resume_ms=740.0) == ((7, 0), 760.0)


def test_the_guard_is_what_early_ops_ask_for() -> None:
    assert set(cell(12).guards_ms(1.0)) == {1.0}
    first, *others = cell(12, early_ms=4.0).guards_ms(1.0)
    assert first == pytest.approx(4.0)
    assert set(others) == {1.0}, "of the GPU whose ops were early alone"
    assert cell(12, early_ms=50.0).guards_ms(1.0)[0] == pytest.approx(0.1 * PERIOD), "it never takes all"


def test_a_signal_that_comes_twice_changes_nothing() -> None:
    seen = cell()
    assert not seen.begun(6, 600.0)
    assert (seen.latest, seen.begin_ms) == (6, 600.0)


def test_training_that_goes_back_is_followed() -> None:
    seen = cell()
    assert seen.begun(4, 5000.0), "resumed from a checkpoint, seconds later"
    assert (seen.latest, seen.begin_ms, seen.period_ms) == (4, 5000.0, PERIOD)
    seen.begun(5, 5000.0 + PERIOD)
    assert seen.next_op(1, 5105.0, resume_ms=5200.0) == ((5, 0), 5120.0)


def test_signals_of_what_a_gpu_does_not_have_are_left_aside() -> None:
    seen = cell()
    assert not seen.ran(0, 6, [0.0], [1.0])
    assert not seen.ran(5, 6, [0.0, 1.0], [1.0, 2.0])
    assert seen.pattern().period_ms == PERIOD


def test_slowdown_pauses_beyond_chance_and_resumes_after_clean_iterations() -> None:
    training = SlowDown(0.01)
    for i in range(FEWEST_OF_EACH):
        assert training.share is None
        training.iteration(1.0 + 0.001 * (i % 3), prefilled=False)
        training.iteration(1.05 + 0.001 * (i % 3), prefilled=True)
    assert training.share == pytest.approx(0.05, abs=0.002)
    assert training.paused
    for i in range(CLEAN_TO_RESUME):
        assert training.paused, i
        training.iteration(1.0, prefilled=False)
    assert not training.paused


def test_slowdown_within_its_noise_does_not_pause() -> None:
    training = SlowDown(0.01)
    for i in range(40):
        training.iteration(1.0 + 0.05 * (i % 5), prefilled=i % 2 == 0)
    assert training.share is not None
    assert not training.paused


def test_iterations_that_are_never_known_as_a_whole_are_not_kept() -> None:
    seen = cell()
    for n in range(6, 300):
        seen.begun(n, n * PERIOD)
        seen.ran(1, n, [0.0, 1.0], [1.0, 2.0])  # the first GPU's ops were never told
    seen.ran(1, 300, [0.0, 1.0], [1.0, 2.0])  # before its begin
    assert len(seen._seen) <= KEPT + 2
    assert len(seen._begins) <= KEPT + 1
