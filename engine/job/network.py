"""The WAN under one hop of a pipeline: its rate by window, cap and number of connections."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.cluster import tcp


@dataclass(frozen=True, slots=True, kw_only=True)
class HopNetwork:
    """One direction of one node pair across one WAN hop.

    connections : TCP connections of the pair; with `auto` the transport begins with what it finds, and over a
        real network changes it by what it measures.
    rate_bytes_per_s : what they carry together, min(connections × window / RTT, cap).
    """

    latency_ms: float
    cap_gbps: float
    connections: int
    window_bytes: int
    rate_bytes_per_s: float
    auto: bool = False

    @property
    def cap_bytes_per_s(self) -> float:
        """Most bytes per second between the two nodes."""
        return self.cap_gbps * 1e9 / 8

    def transfer_ms(self, nbytes: int) -> float:
        """Milliseconds for which a message of `nbytes` occupies the pair, propagation not counted."""
        return nbytes / self.rate_bytes_per_s * 1e3


Between = Callable[[int, int], HopNetwork | None]  # the network of two data centres, by index


def hop_network(*, latency_ms: float, cap_gbps: float, connections: int | None) -> HopNetwork:
    """Return the network of one hop; `connections` None takes as many as the cap needs (Atlas §4.1).

    A single TCP connection carries one window per round trip: engine.cluster.tcp.
    """
    one_way_s = latency_ms / 1e3
    cap = cap_gbps * 1e9 / 8
    count = connections or tcp.connections_needed(cap, tcp.single_connection(one_way_s))
    rate = tcp.bandwidth(one_way_s, cap, count)
    return HopNetwork(
        latency_ms=latency_ms,
        cap_gbps=cap_gbps,
        connections=count,
        window_bytes=round(tcp.WINDOW_BYTES),
        rate_bytes_per_s=rate,
        auto=connections is None,
    )
