"""What machines report: figures that may be anything, taken where they can be true."""

from typing import Any

LARGEST = 1e12


def number(value: Any) -> float | None:
    """`value` as a float where it is a finite number of less than LARGEST, else None."""
    known = isinstance(value, int | float) and abs(value) < LARGEST  # false for what is no number
    return float(value) if known else None
