"""How far a clock is off, from questions and answers of any delay."""

from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from workers.clock import ClockWatch, Reading, measure

DELAY = st.floats(1e-5, 0.5)


class Broker:
    """Answers after a delay each way; its clock is `behind` ours by so much."""

    def __init__(self, behind: float, delays: list[tuple[float, float]]) -> None:
        self.now = 1_790_000_000.0
        self._behind = behind
        self._delays = iter(delays)

    def clock(self) -> float:
        return self.now

    def time(self) -> tuple[int, int]:
        there, back = next(self._delays)
        self.now += there
        seconds = self.now - self._behind
        self.now += back
        return int(seconds), int(seconds % 1 * 1e6)


@given(st.floats(-100, 100), st.lists(st.tuples(DELAY, DELAY), min_size=1, max_size=8))
def test_the_truth_is_within_half_the_shortest_round_trip(
    behind: float, delays: list[tuple[float, float]]
) -> None:
    broker = Broker(behind, delays)
    offset = measure(broker, broker.clock, rounds=len(delays))
    assert offset.rtt_s == pytest.approx(min(there + back for there, back in delays), abs=1e-5)
    assert abs(offset.offset_s - behind) <= offset.rtt_s / 2 + 1e-5


class Away:
    def time(self) -> tuple[int, int]:
        raise redis.ConnectionError("gone")


def test_the_watch_gives_its_best_reading_and_none_while_there_is_none() -> None:
    def connect() -> Any:
        return Away()

    watch = ClockWatch(connect, period_s=0.01)
    watch.start()
    watch.stop()
    assert watch.reading is None
    watch._readings.extend(Reading(offset_s=o, rtt_s=r) for o, r in ((1.0, 0.3), (2.0, 0.1), (3.0, 0.2)))
    assert watch.reading == Reading(offset_s=2.0, rtt_s=0.1)
