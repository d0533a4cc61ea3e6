"""The number of connections of one link: the larger request of the two sides."""

from engine.transport.outbox import Outbox
from engine.transport.shape import Peer
from engine.transport.tuning import MOST_AUTO_CONNECTIONS, Tuner, first_choice

# Seconds of traffic in a sample of the link's rate.
_SAMPLE_S = 1.0


class Size:
    """The number of connections that this side wants, and what the peer wishes; fixed unless `peer.auto`."""

    def __init__(self, peer: Peer) -> None:
        self.wanted = peer.connection_count
        self._wished = 0
        self._peer = peer
        self._tuner: Tuner | None = None
        self._sampled = (0, 0.0)  # bytes delivered, and seconds under way, at the latest sample

    @property
    def most(self) -> int:
        """The target number of connections."""
        return max(self.wanted, self._wished)

    def wish(self, count: int) -> None:
        """The peer asks for so many."""
        self._wished = min(count, MOST_AUTO_CONNECTIONS)

    def begin(self, round_trip_s: float) -> None:
        """The first choice of a link whose number is not fixed, once the round trip is known."""
        self.wanted = first_choice(round_trip_s, self._peer.cap_bytes_per_s)

    def sample(self, outbox: Outbox, count: int) -> int:
        """Look at what `count` connections carried since the latest sample; returns how many to want."""
        if not self._peer.auto:
            return self.wanted
        delivered, under_way_s = outbox.bytes_delivered, outbox.under_way_s
        seconds = under_way_s - self._sampled[1]
        if seconds < _SAMPLE_S:
            return self.wanted
        rate = (delivered - self._sampled[0]) / seconds
        self._sampled = (delivered, under_way_s)
        if not (count and rate):
            return self.wanted
        self._tuner = self._tuner or Tuner(count, self._peer.cap_bytes_per_s)
        return self._tuner.sample(rate, count)
