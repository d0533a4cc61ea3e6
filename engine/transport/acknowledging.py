"""Acknowledges received chunks to the peer: those inside a message together, the last one at once."""

import time
from collections.abc import Callable, Iterable

from engine.transport.connection import Connection
from engine.transport.loop import Loop
from engine.transport.wire import pack_acknowledgement

_PAUSE_S = 0.005


class Acknowledging:
    """Acknowledgements due to the peer, by connection. Runs on the I/O thread.

    Parameters
    ----------
    over : the connection that acknowledgements take now; None where none can be sent.
    """

    def __init__(self, loop: Loop, over: Callable[[], Connection | None]) -> None:
        self._loop = loop
        self._over = over
        self._owed: set[Connection] = set()
        self._waits = False

    def came(self, connection: Connection, *, whole: bool) -> None:
        """A chunk came over `connection`; `whole`: with it a message is complete."""
        self._owed.add(connection)
        if whole:
            self._loop.call(self.pay)
        elif not self._waits:
            self._waits = True
            self._loop.at(time.monotonic() + _PAUSE_S, self._pay_late)

    def forget(self, connection: Connection) -> None:
        """`connection` is gone: the peer sends again what it does not know to have come."""
        self._owed.discard(connection)

    def again(self, connections: Iterable[Connection]) -> None:
        """A connection is gone that may have carried acknowledgements which did not come through."""
        self._owed.update(connections)
        self._loop.call(self.pay)

    def pay(self) -> None:
        """Tell the peer how many chunks each connection has brought."""
        counts = {connection.number: connection.chunks_in for connection in self._owed}
        over = self._over()
        if counts and over is not None:
            self._owed.clear()
            over.send(pack_acknowledgement(counts))

    def _pay_late(self) -> None:
        self._waits = False
        self.pay()
