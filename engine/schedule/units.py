"""The unit in which all durations of a scenario are whole numbers, if there is one."""

import numpy as np
from numpy.typing import NDArray

# A whole multiple of a unit is recognised within this share.
ROUNDING = 1e-9
FINEST_UNIT = 120  # parts of one time unit
MOST_UNITS = 1e12


def common_unit(times: NDArray[np.float64]) -> float | None:
    """The greatest unit, at least 1/120, of which all `times` are whole multiples; None: there is none."""
    times = np.unique(times[times > 0])
    for parts in range(1, FINEST_UNIT + 1):
        units = np.round(times * parts)
        if not len(units) or units.max() > MOST_UNITS:
            return None
        if np.all(units > 0) and np.all(np.abs(times * parts - units) <= ROUNDING * units):
            return float(np.gcd.reduce(units.astype(np.int64))) / parts
    return None
