"""How far and how wide the WAN between two nodes is: round trip, and rate by number of TCP connections.

Both nodes run this at the same time, over the transport that training uses: `listen` on one, `measure` on the
other. An emulated link is measured as its messages see it, on the emulated clock.
"""

import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.documents import read_json
from engine.transport import Address, Endpoint, LinkShape, Peer, Receive, TransportError

PINGS = 9
LISTENER = 0  # its rank; the measuring side is rank 1, 2, … in turn, once per number of connections
FIRST_BYTES, MOST_BYTES = 256 << 10, 16 << 20
LONG_ENOUGH_S = 0.01  # a message that takes less is made larger: handling it must not be what takes the time
IN_FLIGHT, POSTED = 4, 12
MOST_SAID = 64  # bytes of a number or a truth value that the other side says
WARM_UP = 0.3  # share of the time for which a real TCP connection is still growing its window
ENOUGH = 1.05  # more connections that give less than this much more end the measurement
_DATA, _PING, _PONG, _SENT, _RATE = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What `connections` TCP connections carry together in one direction."""

    connections: int
    gbps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """Round trip of a small message in ms (median), and rates by growing number of connections."""

    rtt_ms: float
    rates: tuple[Rate, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON: {rtt_ms, rates: [{connections, gbps}]}."""
        return asdict(self) | {"rates": [asdict(rate) for rate in self.rates]}


def emulated_link(latency_ms: float, bandwidth_gbps: float, window_bytes: float) -> LinkShape:
    """The shape of an emulated link: one-way latency, cap per direction, window of one TCP connection."""
    return LinkShape(
        one_way_delay_s=latency_ms / 1e3, cap_bytes_per_s=bandwidth_gbps * 125e6, window_bytes=window_bytes
    )


def listen(
    host: str,
    port: int,
    *,
    secret: str,
    trial: str,
    counts: Sequence[int],
    shape: LinkShape | None,
    patience_s: float,
    ready: Callable[[Address], None] = lambda _: None,
) -> None:
    """Answer one `measure` on (host, port), then return; also when the other side ends early.

    Port 0 is any that is free; `ready` is called with the address once it listens there.

    Raises
    ------
    InputError
        It cannot listen there.
    TransportError
        Nobody came within `patience_s`, or somebody without the secret.
    """
    ports = (port, port) if port else None
    endpoint = Endpoint(rank=LISTENER, listen_host=host, listen_ports=ports, secret=secret, run=trial)
    try:
        ready(endpoint.address)
        for turn, count in enumerate(counts, start=1):
            endpoint.connect([_peer(turn, (host, port), count, shape)], patience_s)
            if not _answer(endpoint, turn):
                return
    finally:
        endpoint.close(1.0)


def measure(
    host: str,
    address: Address,
    *,
    secret: str,
    trial: str,
    counts: Sequence[int],
    shape: LinkShape | None,
    seconds: float,
    patience_s: float,
) -> LinkRates:
    """Measure the link from `host` to a listener at `address`.

    Parameters
    ----------
    counts : numbers of connections to try, ascending; it ends where more give no more.
    shape : figures of an emulated link; None for a real network.
    seconds : for which to send with each number of connections.
    patience_s : to wait for the listener, and for each of its answers.

    Raises
    ------
    TransportError
        The listener cannot be reached, knows another secret, or went away.
    """
    rtt_ms, rates = 0.0, list[Rate]()
    for turn, count in enumerate(counts, start=1):
        endpoint = Endpoint(rank=turn, listen_host=host, secret=secret, run=trial)
        try:
            endpoint.connect([_peer(LISTENER, address, count, shape)], patience_s)
            if not rates:
                rtt_ms = (
                    statistics.median(_ping(endpoint, number, patience_s) for number in range(PINGS)) * 1e3
                )
            gbps = _blast(endpoint, seconds, patience_s) * 8 / 1e9
            enough = bool(rates) and gbps < ENOUGH * max(rate.gbps for rate in rates)
            rates.append(Rate(connections=count, gbps=gbps))
            last = enough or turn == len(counts)
            endpoint.send(LISTENER, (_SENT, 1), json.dumps(not last).encode())
            if last:
                break
        finally:
            endpoint.close(patience_s)
    return LinkRates(rtt_ms=rtt_ms, rates=tuple(rates))


def _peer(rank: int, address: Address, count: int, shape: LinkShape | None) -> Peer:
    if shape is None:
        return Peer(rank=rank, address=address, connections=count)
    return Peer(rank=rank, address=address, shape=replace(shape, connections=count))


def _ping(endpoint: Endpoint, number: int, patience_s: float) -> float:
    """Seconds for there and back, less what the listener took to turn round."""
    back = endpoint.post_receive(LISTENER, (_PONG, number))
    there = endpoint.send(LISTENER, (_PING, number), b"?")
    back.wait(patience_s)
    there.wait(patience_s)
    return back.arrived - there.start - float(read_json(bytes(back.buffer), most_bytes=MOST_SAID))


def _blast(endpoint: Endpoint, seconds: float, patience_s: float) -> float:
    """Send for `seconds`; returns the bytes per second that the listener saw arrive."""
    answer = endpoint.post_receive(LISTENER, (_RATE, 0))
    payload = memoryview(bytearray(MOST_BYTES))
    size, number = FIRST_BYTES, 0
    flying: deque[Any] = deque()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        flying.append(endpoint.send(LISTENER, (_DATA, number), payload[:size], urgent=False))
        number += 1
        if len(flying) == IN_FLIGHT:
            oldest = flying.popleft()
            oldest.wait(patience_s)
            if oldest.end - oldest.start < LONG_ENOUGH_S and size < MOST_BYTES:
                size *= 2
    for send in flying:
        send.wait(patience_s)
    endpoint.send(LISTENER, (_SENT, 0), json.dumps(number).encode())
    answer.wait(patience_s)
    return float(read_json(bytes(answer.buffer), most_bytes=MOST_SAID))


def _answer(endpoint: Endpoint, peer: int) -> bool:
    """One round of the listener; whether another one follows."""
    pings = [endpoint.post_receive(peer, (_PING, number)) for number in range(PINGS)]
    done, more = endpoint.post_receive(peer, (_SENT, 0)), endpoint.post_receive(peer, (_SENT, 1))
    posted = deque(endpoint.post_receive(peer, (_DATA, number)) for number in range(POSTED))
    arrivals: list[tuple[float, int]] = []
    while not _is_over(done, len(arrivals)):
        if not _until_next(posted[0], done, pings, endpoint, peer):
            continue
        first = posted.popleft()
        arrivals.append((first.arrived, first.message_bytes))
        posted.append(endpoint.post_receive(peer, (_DATA, len(arrivals) + len(posted))))
    endpoint.send(peer, (_RATE, 0), json.dumps(steady_rate(arrivals)).encode())
    more.wait()
    return bool(read_json(bytes(more.buffer), most_bytes=MOST_SAID))


def _is_over(done: Receive, arrived: int) -> bool:
    return done.done and _value(done) == arrived


def _until_next(
    expected: Receive, done: Receive, pings: list[Receive], endpoint: Endpoint, peer: int
) -> bool:
    """Wait a little for the next message, answering pings meanwhile; whether it has arrived."""
    if done.done and done.error is not None:
        raise done.error
    while pings and pings[0].done:
        ping = pings.pop(0)
        ping.wait()
        number = PINGS - len(pings) - 1
        turned_s = time.monotonic() - ping.arrived
        endpoint.send(peer, (_PONG, number), json.dumps(turned_s).encode())
    try:
        expected.wait(0.0005 if pings else 0.05)
    except TimeoutError:
        return False
    return True


def _value(receive: Receive) -> Any:
    receive.wait()
    return read_json(bytes(receive.buffer), most_bytes=MOST_SAID)


def steady_rate(arrivals: Iterable[tuple[float, int]]) -> float:
    """Bytes per second after the warm-up, of (time in s, bytes) of messages in the order of their arrival.

    A message counts from the arrival of the one before it. Raises TransportError where fewer than two came.
    """
    known = sorted(arrivals)
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        raise TransportError("too little data arrived to compute a rate: the link is too slow to measure")
    (first, _), (last, _) = known[0], known[-1]
    start = first + WARM_UP * (last - first)
    before = max(time for time, _ in known if time <= start)
    counted = sum(nbytes for time, nbytes in known if time > before)
    return counted / (last - before)
