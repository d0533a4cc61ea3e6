"""How far this node's clock is from the broker's, which is the one that all nodes share.

One question and answer bounds the difference: the broker read its clock somewhere between our two readings,
so their middle is wrong by at most half the round trip. The shortest of several round trips says most
(Cristian 1989).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import redis

log = logging.getLogger(__name__)

ROUNDS = 5  # questions per measurement
KEPT = 3  # measurements of which the best counts: drift stays small, a busy moment does not show
PERIOD_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """offset_s : this node's clock minus the broker's; known within rtt_s / 2."""

    offset_s: float
    rtt_s: float


def measure(client: "redis.Redis", now: Callable[[], float] = time.time, rounds: int = ROUNDS) -> Reading:
    """Ask the broker for its time `rounds` times and keep the answer with the shortest round trip.

    Raises
    ------
    redis.exceptions.RedisError
        The broker does not answer, or does not let us ask.
    """
    best: Reading | None = None
    for _ in range(rounds):
        before = now()
        seconds, micros = client.time()
        after = now()
        reading = Reading(offset_s=(before + after) / 2 - (seconds + micros / 1e6), rtt_s=after - before)
        if reading.rtt_s >= 0 and (best is None or reading.rtt_s < best.rtt_s):  # a clock set back meanwhile
            best = reading
    return best or Reading(offset_s=0.0, rtt_s=float("inf"))


class ClockWatch:
    """Measures every 10 s in a thread of its own; `reading` is the best of the last few, or None."""

    def __init__(self, connect: Callable[[], "redis.Redis"], period_s: float = PERIOD_S) -> None:
        self._connect = connect
        self._period_s = period_s
        self._readings: deque[Reading] = deque(maxlen=KEPT)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)

    def start(self) -> None:
        """Begin to measure."""
        self._thread.start()

    def stop(self) -> None:
        """End; a measurement under way is not waited for."""
        self._stopping.set()

    @property
    def reading(self) -> Reading | None:
        """The best of the last measurements; None while there is none."""
        return min(list(self._readings), key=lambda reading: reading.rtt_s, default=None)

    def _run(self) -> None:
        client: redis.Redis | None = None
        while not self._stopping.is_set():
            try:
                client = client or self._connect()
                self._readings.append(measure(client))
            except (redis.RedisError, OSError) as error:
                log.debug("the clock could not be compared: %s", error)
                self._readings.clear()
                client = None
            self._stopping.wait(self._period_s)
