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
    if not len(times) or np.round(times[-1]) > MOST_UNITS:
        return None
    # Most units already fail at the shortest time: only the others are tried with all times.
    shortest = times[0] * np.arange(1, FINEST_UNIT + 1)
    for parts in (1 + np.flatnonzero(_are_whole(shortest))).tolist():
        if np.round(times[-1] * parts) > MOST_UNITS:
            return None
        if np.all(_are_whole(times * parts)):
            return float(np.gcd.reduce(np.round(times * parts).astype(np.int64))) / parts
    return None


def _are_whole(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each value is a whole number above 0."""
    whole = np.round(values)
    return (whole > 0) & (np.abs(values - whole) <= ROUNDING * whole)
