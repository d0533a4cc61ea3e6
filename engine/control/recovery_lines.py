"""One line between the first rank's host and another: JSON messages, both sides proving the run's secret."""

import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from engine.control.lines import Lines, Message, encode, mac, tuned
from engine.control.silence import SILENT_S
from engine.job.launch import LaunchSpec

BEAT_S = 1.0
SEND_S = 2.0
LEADER = -1  # in place of a rank, in the proof that the leading host gives


def proof(spec: LaunchSpec, rank: int, nonce: str) -> str:
    """The proof that a side knows the secret; `rank` is the lowest of its machine, or LEADER."""
    return mac(spec.secret, f"recovery/{spec.run}", spec.generation, rank, nonce)


def proves(said: object, spec: LaunchSpec, rank: int, nonce: str) -> bool:
    """Whether the other side gave the proof that `rank` owes to `nonce`."""
    return secrets.compare_digest(proof(spec, rank, nonce), str(said))


class Line:
    """A connection in the host's selector; `hear` takes messages, `gone` is called once when it has ended."""

    def __init__(
        self, connection: socket.socket, selector: selectors.BaseSelector, *,
        hear: Callable[["Line", Message], None], gone: Callable[["Line", str], None],
    ) -> None:  # fmt: skip
        self._socket, self._selector, self._hear, self._gone = tuned(connection), selector, hear, gone
        self._socket.settimeout(SEND_S)
        self._lines = Lines()
        self._open = True
        self._heard = self._beaten = time.monotonic()
        self.nonce = secrets.token_hex(16)
        self.ranks: tuple[int, ...] = ()  # of the other machine, once it has shown that it knows the secret
        selector.register(connection, selectors.EVENT_READ, self._read)

    @property
    def file(self) -> int:
        """Descriptor, which only this process is to hold; -1 once closed."""
        return self._socket.fileno()

    @property
    def silent_s(self) -> float:
        """Seconds since anything came."""
        return time.monotonic() - self._heard

    def tell(self, op: str, **fields: Any) -> None:
        """Send a message; where that fails, the line has ended."""
        if not self._open:
            return
        try:
            self._socket.sendall(encode({"op": op, **fields}))
        except OSError as error:
            self._end(f"it accepts no more messages ({error.strerror or error})")

    def tick(self) -> None:
        """Give a sign of life, and look for the other's."""
        now = time.monotonic()
        if now >= self._beaten + BEAT_S:
            self._beaten = now
            self.tell("beat")
        if self._open and self.silent_s > SILENT_S:
            self._end(f"silent for {self.silent_s:.1f} s")

    def close(self) -> None:
        """Close it, of which nobody is told."""
        if self._open:
            self._open = False
            self._selector.unregister(self._socket)
            self._socket.close()

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self._gone(self, why)

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("it ended")
            self._heard = time.monotonic()
            for message in self._lines.feed(data):
                if self._open:
                    self._hear(self, message)
        except OSError as error:
            self._end(error.strerror or str(error))
        except (ValueError, KeyError, TypeError) as error:
            self._end(f"its message was not understood: {error}")
