"""Micro-dollars, which are kept and exported, as the dollars that people read and type."""

from decimal import ROUND_HALF_UP, Decimal

MICRO = 1_000_000


def dollars(micro: int | None, decimals: int = 2) -> str:
    """`micro` micro-dollars in dollars, as 1,234.50; a dash where there is none."""
    if micro is None:
        return "–"
    return f"{Decimal(micro) / MICRO:,.{decimals}f}"


def exact_dollars(micro: int | None) -> str:
    """As `dollars`, with as many decimals as it takes, two at least: 0.06, 0.061234. For prices, by which
    charges are computed."""
    text = dollars(micro, 6)
    if micro is None:
        return text
    whole, _, part = text.partition(".")
    return f"{whole}.{part.rstrip('0'):0<2}"


def micro_dollars(amount: Decimal) -> int:
    """Dollars as whole micro-dollars, rounded half up."""
    return int((amount * MICRO).to_integral_value(ROUND_HALF_UP))
