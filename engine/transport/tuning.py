"""How many connections a real link is worth: chosen from what one carries, and chosen again while it runs.

Atlas §4.1: a TCP connection carries a window per round trip, so n of them fill a cap of n times that rate.
The window is not known before anything was sent, so the first choice takes the one of Table 1; afterwards
the rate is measured.
"""

import math
from dataclasses import dataclass

from engine.cluster import tcp

MOST_AUTO_CONNECTIONS = 64
# Without a cap to aim at, a link over some distance begins with so many.
_FIRST_WITHOUT_CAP = 4
_FAR_S = 0.002
# What counts as more, or as less.
_GAIN = 0.05
_FULL = 0.93
# Samples between two trials; it doubles with every trial that brought nothing.
_PATIENCE, _MOST_PATIENCE = 4, 256


def first_choice(round_trip_s: float, cap_bytes_per_s: float | None) -> int:
    """Connections to begin with, over a link of which only the round trip and perhaps the cap are known."""
    if cap_bytes_per_s is None:
        return _FIRST_WITHOUT_CAP if round_trip_s > _FAR_S else 1
    needed = tcp.connections_needed(cap_bytes_per_s, tcp.single_connection(round_trip_s / 2))
    return min(needed, MOST_AUTO_CONNECTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A number of connections that is being tried, against what there was before."""

    before: int
    rate: float


class Tuner:
    """Decides how many connections a link should have, from samples of what it carried while it was busy.

    It aims at the cap where one is known: rate / n is what one connection carries, and cap / that is wanted.
    A change is a trial. More connections stay where they bring at least 5 %, fewer where they cost less than
    that; else the number before comes back and the next trial waits twice as long.
    """

    def __init__(self, connections: int, cap_bytes_per_s: float | None) -> None:
        self.connections = connections
        self.single_bytes_per_s = math.nan  # what one connection carried in the latest sample
        self._cap = cap_bytes_per_s
        self._trial: _Trial | None = None
        self._patience = _PATIENCE
        self._wait = 0

    def sample(self, bytes_per_s: float, connections: int) -> int:
        """The link carried so much while `connections` were in use; returns how many it should have now."""
        self.single_bytes_per_s = bytes_per_s / connections
        if connections != self.connections:
            return self.connections  # the change is still under way
        if self._trial is not None:
            self._judge(self._trial, bytes_per_s)
        elif self._wait > 0:
            self._wait -= 1
        else:
            self._try(self._wanted(bytes_per_s), bytes_per_s)
        return self.connections

    def _wanted(self, rate: float) -> int:
        now = self.connections
        if self._cap is not None and rate >= _FULL * self._cap:
            return max(1, now - max(1, now // 8))  # full: fewer may do
        needed = math.inf if self._cap is None else tcp.connections_needed(self._cap, rate / now)
        return int(min(max(needed, now + 1), 2 * now, MOST_AUTO_CONNECTIONS))

    def _try(self, wanted: int, rate: float) -> None:
        if wanted != self.connections:
            self._trial = _Trial(before=self.connections, rate=rate)
            self.connections = wanted

    def _judge(self, trial: _Trial, rate: float) -> None:
        self._trial = None
        more = self.connections > trial.before
        worth = rate >= trial.rate * (1 + _GAIN) if more else rate >= trial.rate * (1 - _GAIN)
        if worth:
            self._patience = _PATIENCE
            self._wait = 0 if more else _PATIENCE
            return
        self.connections = trial.before
        self._wait = self._patience
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
