"""Bandwidth of TCP over a WAN: one window a round trip, so it grows with the number of connections.

Atlas §3 measures one connection at 10–40 ms (Table 1); §4.1 opens as many as fill the cap that the cloud sets
between two nodes. One constant window explains the table within 2.1 %.
"""

import csv
import math
from functools import cache
from importlib.resources import files

# 23.9 Mbit, about 3 MB, in flight at most: fitted to Table 1 of the Atlas paper.
WINDOW_BYTES = 23.9e6 / 8


def single_connection(latency_s: float) -> float:
    """Bytes/s of one TCP connection: a window per round trip of 2 × one-way `latency_s`.

    Infinite at latency 0: the window is no limit there.
    """
    return WINDOW_BYTES / (2 * latency_s) if latency_s > 0 else math.inf


def bandwidth(latency_s: float, cap_bytes_per_s: float, connections: int | None = None) -> float:
    """Bytes/s between two nodes over `connections` parallel connections (None: as many as fill the cap)."""
    if connections is None:
        return cap_bytes_per_s
    return min(connections * single_connection(latency_s), cap_bytes_per_s)


def connections_needed(target_bytes_per_s: float, single_bytes_per_s: float) -> int:
    """Fewest connections whose rates add up to the target.

    Examples
    --------
    With Table 1's rates, 5 Gbps takes 5, 9, 13 and 18 connections at 10, 20, 30 and 40 ms; with the window
    formula 17 at 40 ms.
    """
    if math.isinf(single_bytes_per_s):
        return 1
    # A target that is a whole number of connections must not become one more by rounding.
    return max(1, math.ceil(target_bytes_per_s / single_bytes_per_s * (1 - 1e-12)))


@cache
def measured_single_connection() -> dict[float, float]:
    """Table 1 of the Atlas paper: one-way latency in seconds → bytes/s of one connection."""
    text = files("engine").joinpath("data/atlas/single_tcp_bandwidth.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {float(row["latency_ms"]) / 1e3: float(row["bandwidth_mbps"]) * 1e6 / 8 for row in rows}
