"""The handshake: both sides prove that they know the run's secret before a byte of data is read.

Five small messages, as generators that know no socket: they yield bytes to send, or the number of bytes that
they need next, and return a :class:`Greeting`. The clocks are compared on the way. The layouts of the first
message and of its answer stay as they are in every version, so that a peer of another version can read why it
is refused.
"""

import hashlib
import hmac
import os
import secrets
import struct
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from engine.control.errors import AuthenticationError

_HELLO = struct.Struct("<8sHIIQ16sHH32s")  # magic, version, from, to, generation, run, index, count, nonce
_CHALLENGE = struct.Struct("<B32sd16s")  # status, nonce, clock, boot
_PROOF = struct.Struct("<d16s")  # clock, session
_MAC_BYTES = 32
_SESSION_BYTES = 16
_MAGIC = b"MERIDWAN"
_VERSION = 3
_REFUSALS = {
    1: "it speaks another version of the protocol",
    2: "it belongs to another run",
    3: "it belongs to another generation of the run",
    4: "another rank listens there",
}
_WRONG_SECRET = 5
HANDSHAKE_S = 10.0  # who has not shown by then that it knows the secret is turned away
Dialogue = Generator[bytes | int, bytes, "Greeting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of this side: its rank, the run with its generation, and the secret of the run.

    run : the name of the run; with a prefix where a run has several listeners of which none may be taken for
        another, as in ``recovery/RUN``.
    session : drawn again by every endpoint. A link that comes back must lead to the same endpoint as before:
        one that was started again knows nothing of what had already come.
    """

    rank: int
    run: str
    generation: int
    secret: bytes
    session: bytes = field(default_factory=lambda: secrets.token_bytes(_SESSION_BYTES))

    def mac(self, *parts: bytes) -> bytes:
        """HMAC-SHA256 of `parts` under the secret."""
        return hmac.digest(self.secret, b"".join(parts), "sha256")

    @property
    def run_digest(self) -> bytes:
        """The run's name in 16 bytes."""
        return hashlib.blake2b(self.run.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The outcome: who is there, which of its connections this is, and its clock less ours in seconds.

    index, count : place of the connection among those that the dialler opens, and how many these are; 0: it
        decides as it goes. connection : a number that both sides know it by and no other has.
    round_trip_s : how long the answer took; NaN on the side that was connected to.
    """

    rank: int
    index: int
    count: int
    clock_offset_s: float
    connection: int
    session: bytes
    round_trip_s: float = float("nan")


class Handshake:
    """One side of a handshake that is under way: it is fed with the bytes that come. Knows no socket.

    greeting : the outcome, once it is complete.
    wants : how many bytes it needs next; more of them may be part of what follows the handshake.
    """

    def __init__(self, dialogue: Dialogue) -> None:
        self.greeting: Greeting | None = None
        self.wants = 0
        self._dialogue = dialogue
        self._started = False
        self._received = self._outgoing = b""

    def outgoing(self) -> bytes:
        """Take the bytes that are to be sent now. The first call starts the handshake and its clock."""
        if not self._started:
            self._started = True
            self._advance(None)
        outgoing, self._outgoing = self._outgoing, b""
        return outgoing

    def feed(self, data: bytes) -> None:
        """Take in at most `wants` bytes.

        Raises
        ------
        AuthenticationError
            The other side refuses, or is refused: `outgoing` has what is still to be sent to it.
        """
        self._received += data
        self.wants -= len(data)
        if self.wants == 0:
            received, self._received = self._received, b""
            self._advance(received)

    def _advance(self, received: bytes | None) -> None:
        try:
            step = self._dialogue.send(received)  # type: ignore[arg-type]  # None starts a generator
            while isinstance(step, bytes):
                self._outgoing += step
                step = next(self._dialogue)
            self.wants = step
        except StopIteration as finished:
            self.greeting = finished.value


def dial(me: Identity, *, peer: int, index: int = 0, count: int = 1) -> Dialogue:
    """The side that connects. Raises AuthenticationError."""
    nonce = secrets.token_bytes(32)
    hello = _HELLO.pack(_MAGIC, _VERSION, me.rank, peer, me.generation, me.run_digest, index, count, nonce)
    sent_at = time.monotonic()
    yield hello
    challenge = yield _CHALLENGE.size
    mac = yield _MAC_BYTES
    answered_at = time.monotonic()
    status, _, clock, boot = _CHALLENGE.unpack(challenge)
    if not hmac.compare_digest(mac, me.mac(b"listener", hello, challenge)):
        raise AuthenticationError(f"rank {peer} does not know the secret of run {me.run}")
    if status:
        raise AuthenticationError(f"rank {peer} refused: {_REFUSALS.get(status, 'unknown reason')}")
    offset = 0.0 if boot == _boot() else clock - (sent_at + answered_at) / 2
    proof = _PROOF.pack(-offset, me.session)
    yield proof + me.mac(b"dialler", hello, challenge, proof)
    accepted = yield 1
    if accepted != b"\0":
        raise AuthenticationError(f"rank {peer} refused: wrong secret")
    session = yield _SESSION_BYTES
    return Greeting(
        rank=peer,
        index=index,
        count=count,
        clock_offset_s=offset,
        connection=_number(nonce),
        session=session,
        round_trip_s=answered_at - sent_at,
    )


def listen(me: Identity) -> Dialogue:
    """The side that is connected to. Raises AuthenticationError."""
    hello = yield _HELLO.size
    magic, version, rank, to, generation, run, index, count, nonce = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise AuthenticationError("a program connected that does not use this protocol")
    refusals = (version != _VERSION, run != me.run_digest, generation != me.generation, to != me.rank)
    status = next((code for code, wrong in enumerate(refusals, start=1) if wrong), 0)
    challenge = _CHALLENGE.pack(status, secrets.token_bytes(32), time.monotonic(), _boot())
    yield challenge + me.mac(b"listener", hello, challenge)
    if status:
        raise AuthenticationError(f"refused a program that claims to be rank {rank}: {_REFUSALS[status]}")
    proof = yield _PROOF.size
    mac = yield _MAC_BYTES
    if not hmac.compare_digest(mac, me.mac(b"dialler", hello, challenge, proof)):
        yield bytes([_WRONG_SECRET])
        raise AuthenticationError(f"refused a program that claims to be rank {rank}: wrong secret")
    yield b"\0" + me.session
    offset, session = _PROOF.unpack(proof)
    return Greeting(
        rank=rank, index=index, count=count, clock_offset_s=offset, connection=_number(nonce), session=session
    )


def _number(nonce: bytes) -> int:
    return int.from_bytes(nonce[:8], "little")


def _boot() -> bytes:
    """16 bytes that processes share exactly if they share a monotonic clock: one boot of one machine."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return os.urandom(16)  # no such file: the clocks are compared instead
