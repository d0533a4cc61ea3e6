"""The control channel: both sides prove that they know the run's secret, then messages go both ways.

Everything that processes say to each other about work goes over it: swap workers and their tracker, the hosts
of a run that recovers, prefill coordinators, gateways and ranks, nodes that probe each other. It knows no
socket: the drivers beside it (`selector_driver`, `thread_driver`, `asyncio_driver`) carry the bytes.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Generic

from engine.control.errors import ChannelLost
from engine.control.handshake import Greeting, Handshake
from engine.control.messages import Beat, M, Messages

log = logging.getLogger(__name__)
LONGEST_LINE = 8 << 20  # bytes
READ_BYTES = 1 << 16
MOST_UNREAD_BYTES = 16 << 20  # of messages for a peer that does not read; then its channel is given up
MOST_UNPROVEN = 64  # connections of a listener that have not proved the secret; then the oldest is closed


class Channel(Generic[M]):
    """One side of a control channel.

    Parameters
    ----------
    handshake : comes first, and says itself what is to be sent for it; it may be complete already.
    incoming : the messages that the other side may send.
    """

    def __init__(self, handshake: Handshake, incoming: Messages[M]) -> None:
        self.handshake = handshake
        self._incoming = incoming
        self._rest = bytearray()
        self._searched = 0  # bytes of the rest in which no line ends

    @property
    def greeting(self) -> Greeting | None:
        """Who the other side is; None until it has proved that it knows the secret."""
        return self.handshake.greeting

    @property
    def wants(self) -> int:
        """How many bytes to read at most."""
        return self.handshake.wants if self.greeting is None else READ_BYTES

    def receive(self, data: bytes) -> Iterator[M]:
        """Take in at most `wants` bytes and yield the messages that are complete now.

        Raises
        ------
        AuthenticationError
            The other side does not know the secret, or refuses this one.
        ChannelLost
            A line is too long or no message.
        """
        if self.greeting is None:
            self.handshake.feed(data)
            return
        try:
            yield from self._cut(data)
        except ChannelLost as error:
            log.warning("a message of rank %d was refused: %s", self.greeting.rank, error)
            raise

    def _cut(self, data: bytes) -> Iterator[M]:
        self._rest += data
        while (end := self._rest.find(b"\n", self._searched)) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            self._searched = 0
            _check(len(line))
            message = self._incoming.read(line)
            if not isinstance(message, Beat):
                yield message
        self._searched = len(self._rest)
        _check(self._searched)


class Unproven:
    """The connections of a listener that have not proved the secret, the oldest first.

    There are at most MOST_UNPROVEN: strangers who connect and say nothing keep nobody out.
    """

    def __init__(self) -> None:
        self._close: dict[object, Callable[[], None]] = {}

    def add(self, connection: object, close: Callable[[], None]) -> None:
        """Note a new one; where they are too many, `close` of the oldest is called."""
        self._close[connection] = close
        if len(self._close) > MOST_UNPROVEN:
            self._close.pop(next(iter(self._close)))()

    def remove(self, connection: object) -> None:
        """It has proved the secret, or is gone."""
        self._close.pop(connection, None)


def _check(length: int) -> None:
    if length > LONGEST_LINE:
        raise ChannelLost(f"a line of more than {LONGEST_LINE:,} bytes")
