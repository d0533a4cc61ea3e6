"""How often a rank says how far training is, and in which words."""

import pytest

from engine.train.log_lines import ProgressLog, ranges
from tests.runtime.jobs import job


class Clock:
    """Seconds that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(caplog: pytest.LogCaptureFixture, times_s: list[float], steps: int, **known: float) -> list[str]:
    """What is logged, every 10 s at most, of iterations that end at `times_s`."""
    caplog.set_level("INFO", "engine.train.log_lines")
    clock = Clock()
    progress = ProgressLog(job(steps=steps), every_s=10.0, clock=clock)
    for iteration, clock.now in enumerate(times_s):
        progress.add(iteration, **known)
    return caplog.messages


def test_first_and_last_iteration_are_logged_and_others_every_so_often(caplog):
    log = lines(caplog, [float(second) for second in range(25)], steps=25)
    assert [line.split(",")[0].rstrip(".") for line in log] == [
        "Iteration 1 of 25",
        "Iteration 11 of 25",
        "Iteration 21 of 25",
        "Iteration 25 of 25",
    ]


def test_speed_is_that_since_the_last_line(caplog):
    speed = f"5.000 s/iteration, {job().tokens_per_step / 5:,.0f} tokens/s"
    log = lines(caplog, [0.0, 5.0, 10.0], steps=1_000, loss=2.5, norm=0.125)
    assert log == [
        "Iteration 1 of 1,000, loss 2.5000, gradient norm 0.125.",
        f"Iteration 3 of 1,000, loss 2.5000, gradient norm 0.125, {speed}.",
    ]


def test_after_a_step_back_no_speed_is_claimed(caplog):
    caplog.set_level("INFO", "engine.train.log_lines")
    clock = Clock()
    progress = ProgressLog(job(steps=100), every_s=10.0, clock=clock)
    progress.add(50)
    clock.now = 20.0
    progress.add(40)
    assert caplog.messages[-1] == "Iteration 41 of 100."


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0–2, 5"), ([9, 4, 5], "4–5, 9")]
)
def test_ranges_of_layers(numbers, text):
    assert ranges(numbers) == text
