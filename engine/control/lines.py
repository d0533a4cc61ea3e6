"""Messages between processes of a run, apart from its tensors: one JSON object per line, over TCP.

Workers and the tracker of a swap run speak so, and the hosts of a run that recovers. A connection begins with
a nonce, which the other side answers with its MAC under the run's secret: who does not know it is refused
before anything it says is heeded.
"""

import hashlib
import hmac
import json
import socket
from typing import Any

Message = dict[str, Any]
LONGEST_LINE = 4 << 20


def mac(secret: str, run: str, generation: int, rank: int, nonce: str) -> str:
    """The answer of rank `rank` of a run to a `nonce`."""
    said = json.dumps([run, generation, rank, nonce])
    return hmac.new(secret.encode(), said.encode(), hashlib.sha256).hexdigest()


def encode(message: Message) -> bytes:
    """A message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Bytes that came so far, cut into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole now.

        Raises
        ------
        ValueError
            A line is longer than any message, or no JSON object.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise ValueError(f"a line of more than {LONGEST_LINE:,} bytes")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a line that is not a JSON object")
        return messages


def tuned(connection: socket.socket) -> socket.socket:
    """The connection with small messages sent at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
