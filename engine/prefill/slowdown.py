"""By how much prefill slows a training down, measured on the run itself.

Iterations in which prefill ran are compared with those without prefill: the medians of the latest of each, as
a share. It is a comparison within one run; whatever else changes in the meantime is in it.
"""

from collections import deque
from collections.abc import Iterable
from math import sqrt
from statistics import median

KEPT = 64
FEWEST = 8
# A median's standard error is so many of its sample's standard deviations / sqrt(n); so many median absolute
# deviations are one standard deviation (both of a normal distribution).
ERROR_OF_MEDIAN = 1.2533
DEVIATIONS = 1.4826
SURE = 1.645  # one-sided, 95 %
CLEAN_TO_RESUME = 16


class SlowDown:
    """Decides when prefill must pause: where training is slower by more than `limit`, beyond chance."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._with: deque[float] = deque(maxlen=KEPT)
        self._without: deque[float] = deque(maxlen=KEPT)
        self._clean = 0
        self.paused = False

    def iteration(self, seconds: float, *, prefilled: bool) -> None:
        """An iteration lasted so long, from its begin to the next one's."""
        (self._with if prefilled else self._without).append(seconds)
        if not self.paused:
            self.paused = self._is_past_limit()
            self._clean = 0
            return
        self._clean = 0 if prefilled else self._clean + 1
        if self._clean >= CLEAN_TO_RESUME:  # try again, and judge by what comes
            self.paused = False
            self._with.clear()

    @property
    def share(self) -> float | None:
        """The measured slow-down; None before there are eight iterations of either kind."""
        if min(len(self._with), len(self._without)) < FEWEST:
            return None
        return median(self._with) / median(self._without) - 1

    def _is_past_limit(self) -> bool:
        share = self.share
        if share is None:
            return False
        return share - SURE * (_relative_error(self._with) + _relative_error(self._without)) > self._limit


def _relative_error(values: Iterable[float]) -> float:
    """Standard error of the median, as a share of it."""
    sample = list(values)
    middle = median(sample)
    spread = DEVIATIONS * median(abs(value - middle) for value in sample)
    return ERROR_OF_MEDIAN * spread / sqrt(len(sample)) / middle
