"""The latency that the transport measures: on a virtual clock, and over real sockets."""

import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.transport import LinkShape
from engine.transport.pinging import LATEST, MOST_OPEN, Pinging, answer
from tests.runtime.transport_pairs import pair
from tests.waiting import LIMIT_S, until

TICK_S = 0.5
delays = st.floats(0.0005, 0.2)


class Way:
    """Two sides with clocks of their own, `ahead_s` apart, and what a busy processor adds to a frame."""

    def __init__(self, *, ahead_s: float, emulated: bool, seed: int) -> None:
        self.ahead_s, self.emulated = ahead_s, emulated
        self.pinging, self.now, self._chance = Pinging(), 100.0, random.Random(seed)

    def tick(self, delay_s: float, *, most_late_s: float) -> float | None:
        """One ping and its answer; on an emulated link frames come at once and say when they are due."""
        self.now += TICK_S
        delay = delay_s if self.emulated else None
        travels = 0.0 if self.emulated else delay_s
        ping = self.pinging.ping(self.now, delay)
        there = self.now + travels + self._chance.uniform(0, most_late_s)
        pong = answer(ping, there + self.ahead_s, ping.due + self.ahead_s, delay)
        back = there + travels + self._chance.uniform(0, most_late_s)
        if self.emulated:  # as a frame that is due on the other side's clock
            back = self.now + self._chance.uniform(0, most_late_s)
        self.pinging.answered(pong.message, back, pong.due - self.ahead_s)
        return self.pinging.one_way_s


@given(
    before=delays,
    after=delays,
    ahead_s=st.floats(-1e3, 1e3),
    emulated=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_change_is_measured_within_10_percent_after_as_many_pings_as_count(
    before: float, after: float, ahead_s: float, emulated: bool, seed: int
) -> None:
    way = Way(ahead_s=ahead_s, emulated=emulated, seed=seed)
    for delay_s in (before, after):
        measured = [way.tick(delay_s, most_late_s=0.2 * delay_s) for _ in range(3 * LATEST)]
        if emulated:
            assert measured[LATEST:] == pytest.approx([delay_s] * 2 * LATEST, rel=1e-6)
        assert measured[-1] is not None
        assert delay_s * (1 - 1e-6) <= measured[-1] <= 1.2 * delay_s
        quiet = [
            way.tick(delay_s, most_late_s=5 * delay_s if n % LATEST else 0.1 * delay_s) for n in range(9)
        ]
        assert all(one is not None and one <= 1.1 * delay_s for one in quiet[LATEST:]), "the least counts"


def test_nothing_is_known_before_an_answer_and_answers_to_nothing_do_not_count() -> None:
    pinging = Pinging()
    assert pinging.one_way_s is None
    numbers = [pinging.ping(float(n), None).message for n in range(MOST_OPEN + 1)]
    for number in (numbers[0], numbers[-1] + 1):  # forgotten, and never sent
        pinging.answered(number, 1e3, math.nan)
    assert pinging.one_way_s is None
    pinging.answered(numbers[-1], MOST_OPEN + 0.25, math.nan)
    pinging.answered(numbers[-1], MOST_OPEN + 0.125, math.nan)
    assert pinging.one_way_s == 0.125


def test_over_sockets_both_sides_see_the_emulated_delay_and_when_it_grows() -> None:
    shape = LinkShape(one_way_delay_s=0.02, cap_bytes_per_s=10e6)
    with pair(shape) as ends:

        def latencies() -> list[float]:
            return [end.traffic()[0].one_way_s or 0.0 for end in ends]

        until(lambda: latencies() == pytest.approx([0.02, 0.02], rel=0.1), latencies)
        for end, peer in zip(ends, (1, 0), strict=True):
            end.slow(peer, 1.0, delay=3.0)
        until(lambda: latencies() == pytest.approx([0.06, 0.06], rel=0.1), latencies)
        receive = ends[1].post_receive(0, (1,), 8)
        began = time.monotonic()
        ends[0].send(1, (1,), b"8 bytes.")
        receive.wait(LIMIT_S)
        assert receive.due - began >= 0.06, "messages take as long"


def test_a_real_link_on_this_machine_has_next_to_no_latency() -> None:
    with pair() as (here, _):
        until(lambda: 0 < (here.traffic()[0].one_way_s or 1.0) < 0.005, here.traffic)
