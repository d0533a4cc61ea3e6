"""Numbers in addresses and forms that are read by hand, which may say anything."""

import math

LARGEST = 2**63 - 1  # of a primary key


def whole(text: str | None, most: int = LARGEST) -> int | None:
    """The whole number from 0 to `most` that `text` is; None where it is none.

    Not str.isdigit, which is true of "²", nor int() alone, which refuses 5,000 digits.
    """
    if not text or len(text) > 19 or not text.isdecimal():
        return None
    number = int(text)
    return number if number <= most else None


def number(text: str | None, least: float, most: float) -> float | None:
    """The number from `least` to `most` that `text` is; None where it is none."""
    if not text or len(text) > 40:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and least <= value <= most else None
