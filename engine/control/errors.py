"""Errors between two ranks."""


class TransportError(ConnectionError):
    """Base of the transport's own errors; surfaces at `wait` of what it concerns."""


class AuthenticationError(TransportError):
    """A peer does not know the run's secret, or belongs to another run, generation or rank."""


class ChannelLost(TransportError):
    """A control channel ended, or what came over it was no message."""


class MessageSizeError(TransportError):
    """A message has another size than the buffer that was posted for it."""


class LinkLost(TransportError):
    """The pair of nodes can no longer talk: a connection broke, the peer died, closed or fell silent.

    Attributes: `peer` (rank), `link` (its name), `reason`.
    """

    def __init__(self, *, rank: int, peer: int, link: str, reason: str) -> None:
        self.peer = peer
        self.link = link
        self.reason = reason
        super().__init__(f"rank {rank} lost rank {peer} over {link}: {reason}")


class ChecksumError(LinkLost):
    """A chunk came with other bytes than were sent; the link is not to be trusted any more."""


class PeerLost(RuntimeError):
    """The rank at the other end is gone: this rank fails, but it is not the cause."""
