"""Who may talk: both sides prove that they know the run's secret before a byte of data is read.

Four small messages, as generators that know no socket: they yield bytes to send, or the number of bytes that
they need next, and return a :class:`Greeting`. The same code so runs on a blocking socket (the side that
dials) and inside the selector loop (the side that listens). The clocks are compared on the way.
"""

import hashlib
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from engine.runtime.transport.errors import AuthenticationError, TransportError

_HELLO = struct.Struct("<8sHIIQ16sHH32s")  # magic, version, from, to, generation, run, index, count, nonce
_CHALLENGE = struct.Struct("<B32sd16s")  # status, nonce, clock, boot
_CLOCK = struct.Struct("<d")
_MAC_BYTES = 32
_MAGIC = b"MERIDWAN"
_VERSION = 1
_REFUSALS = {
    1: "it speaks another version of the protocol",
    2: "it belongs to another run",
    3: "it belongs to another generation of the run",
    4: "another rank listens there",
}
_WRONG_SECRET = 5
Dialogue = Generator[bytes | int, bytes, "Greeting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this side is: its rank, the run with its generation, and the secret that the run's ranks share."""

    rank: int
    run: str
    generation: int
    secret: bytes

    def mac(self, *parts: bytes) -> bytes:
        """HMAC-SHA256 of `parts` under the secret."""
        return hmac.digest(self.secret, b"".join(parts), "sha256")

    @property
    def run_digest(self) -> bytes:
        """The run's name in 16 bytes."""
        return hashlib.blake2b(self.run.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The outcome: who is there, which of its connections this is, and its clock less ours in seconds."""

    rank: int
    index: int
    count: int
    clock_offset_s: float


def dial(me: Identity, *, peer: int, index: int, count: int) -> Dialogue:
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
    proof = _CLOCK.pack(-offset)
    yield proof + me.mac(b"dialler", hello, challenge, proof)
    accepted = yield 1
    if accepted != b"\0":
        raise AuthenticationError(f"rank {peer} refused: wrong secret")
    return Greeting(rank=peer, index=index, count=count, clock_offset_s=offset)


def listen(me: Identity) -> Dialogue:
    """The side that is connected to. Raises AuthenticationError."""
    hello = yield _HELLO.size
    magic, version, rank, to, generation, run, index, count, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise AuthenticationError("a stranger connected that does not speak the protocol")
    refusals = (version != _VERSION, run != me.run_digest, generation != me.generation, to != me.rank)
    status = next((code for code, wrong in enumerate(refusals, start=1) if wrong), 0)
    challenge = _CHALLENGE.pack(status, secrets.token_bytes(32), time.monotonic(), _boot())
    yield challenge + me.mac(b"listener", hello, challenge)
    if status:
        raise AuthenticationError(f"refused one that calls itself rank {rank}: {_REFUSALS[status]}")
    proof = yield _CLOCK.size
    mac = yield _MAC_BYTES
    if not hmac.compare_digest(mac, me.mac(b"dialler", hello, challenge, proof)):
        yield bytes([_WRONG_SECRET])
        raise AuthenticationError(f"refused one that calls itself rank {rank}: wrong secret")
    yield b"\0"
    return Greeting(rank=rank, index=index, count=count, clock_offset_s=_CLOCK.unpack(proof)[0])


def run_blocking(dialogue: Dialogue, connected: socket.socket) -> Greeting:
    """Hold `dialogue` over a blocking socket. Raises what the dialogue raises, TransportError, OSError."""
    step = next(dialogue)
    try:
        while True:
            if isinstance(step, bytes):
                connected.sendall(step)
                step = next(dialogue)
            else:
                step = dialogue.send(_receive(connected, step))
    except StopIteration as finished:
        greeting: Greeting = finished.value
        return greeting


class Reception:
    """Holds `listen` over a socket that must not block; call `advance` whenever it is readable."""

    def __init__(self, me: Identity, connected: socket.socket, deadline: float) -> None:
        self.socket = connected
        self.deadline = deadline
        self._dialogue = listen(me)
        self._step = next(self._dialogue)
        self._received = b""

    def advance(self) -> Greeting | None:
        """The greeting once it is complete. Raises AuthenticationError, TransportError, OSError."""
        try:
            while True:
                if isinstance(self._step, bytes):
                    # At most 100 bytes into an empty buffer: the kernel takes them whole.
                    self.socket.sendall(self._step)
                    self._step = next(self._dialogue)
                elif len(self._received) == self._step:
                    received, self._received = self._received, b""
                    self._step = self._dialogue.send(received)
                elif not self._read_on(self._step):
                    return None
        except StopIteration as finished:
            greeting: Greeting = finished.value
            return greeting

    def _read_on(self, wanted: int) -> bool:
        try:
            piece = self.socket.recv(wanted - len(self._received))
        except BlockingIOError:
            return False
        if not piece:
            raise TransportError("closed during the handshake")
        self._received += piece
        return True


def _receive(connected: socket.socket, wanted: int) -> bytes:
    received = b""
    while len(received) < wanted:
        piece = connected.recv(wanted - len(received))
        if not piece:
            raise TransportError("closed during the handshake")
        received += piece
    return received


def _boot() -> bytes:
    """16 bytes that processes share exactly if they share a monotonic clock: one boot of one machine."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return os.urandom(16)  # no such file: the clocks are compared instead
