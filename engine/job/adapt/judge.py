"""Does a deviation last? Pure bookkeeping of planned and measured times, without clock or network."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from engine.job.adapt.measured import LEAST_DRIFT_MS, Deviation, Measured, Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Something lasts: what, the worst first, and the medians of everything that was measured meanwhile."""

    deviations: tuple[Deviation, ...]
    measured: Mapping[Quantity, float]


class Judge:
    """Says when a quantity has been off by more than `limit` in each of the last `iterations` iterations.

    Always in the same direction, so that what merely swings does not count.

    Parameters
    ----------
    planned : milliseconds by quantity; what is not in it is not judged.
    limit : share, 0.1 for 10 %.
    """

    def __init__(self, planned: Measured, *, limit: float, iterations: int) -> None:
        self._planned = dict(planned)
        self._limit, self._iterations = limit, iterations
        self._window: deque[Measured] = deque(maxlen=iterations)

    def observe(self, measured: Measured) -> Verdict | None:
        """Take in one iteration, in order."""
        self._window.append({name: ms for name, ms in measured.items() if name in self._planned})
        medians = self.medians
        if medians is None:
            return None
        lasting = [
            Deviation(quantity=name, planned_ms=self._planned[name], measured_ms=medians[name])
            for name in medians
            if self._lasts(name)
        ]
        if not lasting:
            return None
        worst = sorted(
            lasting, key=lambda d: -max(d.measured_ms, d.planned_ms) / min(d.measured_ms, d.planned_ms)
        )
        return Verdict(deviations=tuple(worst), measured=medians)

    @property
    def medians(self) -> Measured | None:
        """What was measured in the last `iterations` iterations; None before there were so many."""
        if len(self._window) < self._iterations:
            return None
        return {
            name: median(figures)
            for name in self._planned
            if (figures := [one[name] for one in self._window if name in one])
        }

    def expect(self, planned: Measured) -> None:
        """Count on other times from now on, and begin to watch again."""
        self._planned.update({name: ms for name, ms in planned.items() if name in self._planned})
        self._window.clear()

    def _lasts(self, name: Quantity) -> bool:
        planned_ms = self._planned[name]
        drift_ms = max(self._limit * planned_ms, LEAST_DRIFT_MS.get(str(name[0]), 0.0))
        off_ms = [one[name] - planned_ms for one in self._window if name in one]
        if len(off_ms) < self._iterations:
            return False
        return min(off_ms) > drift_ms or max(off_ms) < -drift_ms
