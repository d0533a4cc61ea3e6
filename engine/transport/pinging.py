"""The latency of a link: half of the least round trip among its latest pings.

A ping is a frame without content, which the peer answers at once. Both times are read on the clock of the
side that asks, so clocks need not agree. Only the least of several round trips counts: a busy processor or a
queue can only add to one. An emulated link holds a frame back by arithmetic, as it holds messages
(`Header.due`).
"""

import math
from collections import deque

from engine.transport.wire import Header, Kind

LATEST = 4  # round trips that count: with two pings a second, a longer way shows within 2 s
MOST_OPEN = 64  # pings without an answer that are remembered


class Pinging:
    """The pings of one side of a link. All times are arguments, in seconds of time.monotonic()."""

    def __init__(self) -> None:
        self._number = 0
        self._open: dict[int, float] = {}
        self._round_trips_s: deque[float] = deque(maxlen=LATEST)

    @property
    def one_way_s(self) -> float | None:
        """Latency in one direction, in seconds, taken as the same in both; None before the first answer."""
        return min(self._round_trips_s) / 2 if self._round_trips_s else None

    def ping(self, now: float, delay_s: float | None) -> Header:
        """A frame to send now; `delay_s` is that of an emulated link, None over a real one."""
        self._number += 1
        self._open[self._number] = now
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        return Header(kind=Kind.PING, message=self._number, due=_due(now, delay_s))

    def answered(self, number: int, now: float, due: float) -> None:
        """The answer to a ping came at `now`; `due`: when it is there on an emulated link, NaN on a real one.

        An answer to no open ping counts for nothing.
        """
        sent = self._open.pop(number, None)
        if sent is not None:
            self._round_trips_s.append(arrival(now, due) - sent)


def answer(ping: Header, now: float, due: float, delay_s: float | None) -> Header:
    """The answer to a ping that came at `now`, due as in `Pinging.answered`."""
    return Header(kind=Kind.PONG, message=ping.message, due=_due(arrival(now, due), delay_s))


def arrival(now: float, due: float) -> float:
    """When a frame counts as there that came at `now`: when it is `due`; NaN: when it came.

    Not the later of both: a late thread makes no emulated link longer.
    """
    return now if math.isnan(due) else due


def _due(leaves: float, delay_s: float | None) -> float:
    return math.nan if delay_s is None else leaves + delay_s
