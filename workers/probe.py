"""Whether other nodes can be reached, how far they are, and how their clocks stand to ours.

While a probe lasts, each agent listens on the last port of its range. A caller and the listener prove to each
other that they know the probe's secret. Then the caller asks a few times, and each answer has the listener's
time.
"""

import logging
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from engine.control.errors import AuthenticationError, ChannelLost
from engine.control.handshake import Handshake, Identity, dial
from engine.control.messages import Messages
from engine.control.thread_driver import BlockingChannel
from engine.control.thread_server import ThreadServer
from engine.errors import InputError
from engine.inputs import Document, Number
from engine.job.events.base import Emit
from engine.job.events.node import PeerAnswer, Probe

log = logging.getLogger(__name__)

ASKED = 9  # questions per peer
CONNECT_S = 2.0
AGAIN_S = 0.1
LONGEST_LISTEN_S = 20.0
MOST_PEERS = 256
SECRET_BYTES = 32
LISTENER, CALLER = 0, 1  # their ranks


class Question(Document):
    """What the time is there."""

    kind: Literal["question"] = "question"


class Time(Document):
    """The answer: Unix time."""

    kind: Literal["time"] = "time"
    t: Number


FROM_CALLER: Messages[Question] = Messages(Question)
FROM_LISTENER: Messages[Time] = Messages(Time)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """Another node and where it listens while it is probed."""

    node: str
    host: str
    port: int


class Listener:
    """Answers callers who know the secret of a probe on (host, port) until `close`, or `seconds` have passed.

    Raises OSError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, secret: bytes, seconds: float) -> None:
        listening = socket.create_server((host, port), backlog=128)
        self._server = ThreadServer(listening, _identity(LISTENER, secret), _answer, name="probe-listen")
        self.port: int = self._server.address[1]
        self._end = threading.Timer(min(seconds, LONGEST_LISTEN_S), self._server.close)
        self._end.daemon = True
        self._end.start()

    def close(self) -> None:
        """Stop listening."""
        self._end.cancel()
        self._server.close()


def _identity(rank: int, secret: bytes) -> Identity:
    return Identity(rank=rank, run="probe", generation=0, secret=secret)


def _answer(caller: socket.socket, handshake: Handshake) -> None:
    caller.settimeout(CONNECT_S)
    channel = BlockingChannel(caller, handshake, FROM_CALLER)
    for _ in zip(range(ASKED), channel.messages(), strict=False):
        channel.send(Time(t=time.time()))


def ask(peer: PeerAddress, secret: bytes, patience_s: float) -> PeerAnswer:
    """Connect to `peer`, trying again while it does not listen yet, and measure."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _measured(peer, secret)
        except OSError as error:
            reason = _reason(error)
            # Refused: nobody listens there yet, or something else does. Anything else will not mend itself.
            if not isinstance(error, ConnectionError) or time.monotonic() + AGAIN_S > deadline:
                where = f"{peer.host}:{peer.port}"
                return PeerAnswer(node=peer.node, ok=False, error=f"{where}: {reason}")
        time.sleep(AGAIN_S)


def _measured(peer: PeerAddress, secret: bytes) -> PeerAnswer:
    began = time.perf_counter()
    with socket.create_connection((peer.host, peer.port), timeout=CONNECT_S) as link:
        connect_s = time.perf_counter() - began
        handshake = Handshake(dial(_identity(CALLER, secret), peer=LISTENER))
        channel = BlockingChannel(link, handshake, FROM_LISTENER, seconds=CONNECT_S)
        answers = channel.messages()
        trips: list[tuple[float, float]] = []  # round trip, offset
        for _ in range(ASKED):
            before, wall = time.perf_counter(), time.time()
            channel.send(Question())
            answer = next(answers, None)
            if answer is None:
                raise ChannelLost("closed by the other side")
            rtt_s = time.perf_counter() - before
            trips.append((rtt_s, wall + rtt_s / 2 - answer.t))
    rtt_s = statistics.median(rtt for rtt, _ in trips)
    return PeerAnswer(
        node=peer.node, ok=True, rtt_ms=rtt_s * 1e3, connect_ms=connect_s * 1e3, offset_ms=min(trips)[1] * 1e3
    )


class Prober:
    """Carries out probes for one node, in threads: the task that asks for one returns at once."""

    def __init__(self, *, host: str, publish: Emit) -> None:
        self._host = host
        self._publish = publish
        self._lock = threading.Lock()
        self._listeners: dict[int, Listener] = {}
        self._seen: deque[str] = deque(maxlen=100)

    def start(
        self, probe: str, secret: str, port: int, peers: Iterable[dict[str, Any]], seconds: float
    ) -> str:
        """Listen on `port` for `seconds` and ask `peers`; a probe that comes again does nothing.

        Returns what is being done, for the log. Results go out as one `probe` event.
        """
        key, addresses, seconds = _checked(secret, peers, seconds)
        with self._lock:
            if probe in self._seen:
                return "known already"
            self._seen.append(probe)
        refused = self._listen(port, key, seconds)
        threading.Thread(
            target=self._ask_all, args=(probe, key, addresses, seconds), name="probe-ask", daemon=True
        ).start()
        return refused or f"listening on {port}, asking {len(addresses)} nodes"

    def _listen(self, port: int, secret: bytes, seconds: float) -> str:
        with self._lock:
            open_listener = self._listeners.pop(port, None)
        if open_listener is not None:
            open_listener.close()
        try:
            listener = Listener(self._host, port, secret, seconds)
        except OSError as error:
            log.warning("cannot listen on %s:%d: %s", self._host, port, error)
            return f"cannot listen on {self._host}:{port}: {_reason(error)}"
        with self._lock:
            self._listeners[port] = listener
        return ""

    def _ask_all(self, probe: str, secret: bytes, peers: list[PeerAddress], seconds: float) -> None:
        results: list[PeerAnswer] = []
        if peers:
            # Half of the time in which all listen is for those whose task comes late.
            with ThreadPoolExecutor(min(32, len(peers)), "probe") as pool:
                results = list(pool.map(lambda peer: ask(peer, secret, seconds / 2), peers))
        self._publish(Probe(probe=probe, t=time.time(), results=tuple(results)))


def _checked(
    secret: str, peers: Iterable[dict[str, Any]], seconds: float
) -> tuple[bytes, list[PeerAddress], float]:
    key = str(secret).encode()
    if len(key) != SECRET_BYTES:
        raise InputError("secret", "…", f"must be {SECRET_BYTES} characters")
    try:
        addresses = [
            PeerAddress(node=str(p["node"]), host=str(p["host"]), port=int(p["port"])) for p in peers
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("peers", str(error), "must be a list of {node, host, port}") from None
    if len(addresses) > MOST_PEERS:
        raise InputError("peers", len(addresses), f"must be at most {MOST_PEERS}")
    return key, addresses, min(max(1.0, float(seconds)), LONGEST_LISTEN_S)


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_S:g} s: check the firewall and the address"
    if isinstance(error, ConnectionRefusedError):
        return "refused: no process listens there"
    if isinstance(error, AuthenticationError):
        return "refused: another program listens there, or the node takes part in another probe"
    return error.strerror or str(error) or type(error).__name__
