"""Traffic of one pair of nodes."""

from dataclasses import dataclass


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
    round_trip_s : least round trip that the kernel saw; None where it does not tell.
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
