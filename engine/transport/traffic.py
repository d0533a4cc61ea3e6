"""Traffic of one pair of nodes."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """Traffic of one pair so far, as this rank sees it.

    connections : that carry data, now.
    bytes_sent, bytes_received : of messages, filler included, headers not.
    egress_bytes : everything that this rank has sent to the peer: headers, signs of life and repeats too.
    resent_bytes : of chunks that were sent again because their connection broke.
    reconnects : connections that broke and were replaced.
    busy_s : seconds in which at least one bulk or urgent message of this rank was passing the link.
    most_late_s : how much later than the emulated link had it a message was received, at most.
    round_trip_s : least round trip that the kernel saw; None where it does not tell. It does not see the
        delay of an emulated link.
    one_way_s : latency in one direction, by the latest pings of the transport; None before an answer.
    """

    peer: int
    link: str
    connections: int
    bytes_sent: int
    bytes_received: int
    busy_s: float
    most_late_s: float
    egress_bytes: int = 0
    resent_bytes: int = 0
    reconnects: int = 0
    round_trip_s: float | None = None
    one_way_s: float | None = None

    def as_egress(self) -> dict[str, Any]:
        """The part of a run's statistics (engine.job.wan): bytes, connections, latency_ms (None: unknown)."""
        latency_ms = None if self.one_way_s is None else self.one_way_s * 1e3
        return {"bytes": self.egress_bytes, "connections": self.connections, "latency_ms": latency_ms}
