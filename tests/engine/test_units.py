"""The common unit of durations, against exact fractions."""

from fractions import Fraction
from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedule.units import FINEST_UNIT, MOST_UNITS, common_unit


@given(counts=st.lists(st.integers(1, 10_000), min_size=1, max_size=9), parts=st.integers(1, 2 * FINEST_UNIT))
def test_it_is_the_greatest_fraction_that_divides_all(counts: list[int], parts: int) -> None:
    unit = Fraction(gcd(*counts), parts)
    times = np.array([0.0, *(count / parts for count in counts)])
    if unit.denominator <= FINEST_UNIT:
        assert common_unit(times) == unit.numerator / unit.denominator
    else:
        assert common_unit(times) is None


@pytest.mark.parametrize(
    "times", [[], [0.0], [1.0, 2**0.5], [MOST_UNITS * 2], [MOST_UNITS, 0.5], [1.0, np.inf]]
)
def test_times_without_one(times: list[float]) -> None:
    assert common_unit(np.array(times)) is None
