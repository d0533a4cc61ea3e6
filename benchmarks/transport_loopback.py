"""The transport against plain sockets over loopback: side by side, in turn, same number of connections.

    python -m benchmarks.transport_loopback [connections …]

One GiB from one process to another, five times each way of sending, taking turns so that other work on the
machine hits all alike; ratios are of the medians. Plain sockets are given the best of two ways: a thread per
connection that sends an equal share with blocking calls, and one thread with a selector; first as the system
opens them, then with the congestion control that the transport asks for inside a machine. Bars, against the
first: 90 % with checksums off, 60 % with them on. CPU is what both processes spent on one GiB.
"""

import functools
import multiprocessing
import os
import selectors
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from engine.transport import Endpoint, Peer

NBYTES = 1 << 30
REPEATS = 5
Ways = dict[str, Callable[[], None]]
OURS = ("ours, unchecked", "ours, checksums")
PLAIN = {"plain": None, "reno": b"reno"}
ROWS = (*(f"{kind}, {way}" for kind in PLAIN for way in ("threads", "selector")), *OURS)


def main() -> None:
    counts = [int(argument) for argument in sys.argv[1:]] or [1, 4, 8]
    print("connections  way                GB/s  of plain  of reno  CPU s/GiB")
    failed = False
    for connections in counts:
        figures = measure(connections)
        plain, reno = (max(figures[f"{kind}, {way}"][0] for way in ("threads", "selector")) for kind in PLAIN)
        for name, (rate, cpu_s) in figures.items():
            shares = f"{100 * rate / plain:7.0f} % {100 * rate / reno:6.0f} %"
            print(f"{connections:11}  {name:16} {rate / 1e9:6.2f} {shares}  {cpu_s:9.2f}")
        failed |= figures["ours, unchecked"][0] < 0.9 * plain or figures["ours, checksums"][0] < 0.6 * plain
    sys.exit(failed)


def measure(connections: int) -> dict[str, tuple[float, float]]:
    """Bytes per second and CPU seconds of one GiB, medians, by way."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=receiver, args=(theirs, connections), daemon=True)
    child.start()
    theirs.close()
    ways = sender_ways(ours, connections)
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in ROWS}
    for _ in range(REPEATS + 1):
        for name in ROWS:
            ours.send(name)
            ours.recv()  # it is ready
            begin, cpu = time.monotonic(), time.process_time()
            ways[name]()
            end, peer_cpu_s = ours.recv()
            results[name].append((end - begin, time.process_time() - cpu + peer_cpu_s))
    ours.send(None)
    ways["close"]()
    child.join(30)
    return {
        name: (NBYTES / statistics.median(s for s, _ in rows[1:]), statistics.median(c for _, c in rows[1:]))
        for name, rows in results.items()
    }


def sender_ways(pipe: Connection, connections: int) -> Ways:
    """What sends the gibibyte, by way; both processes connect in the same order."""
    data = memoryview(bytearray(os.urandom(1 << 20) * (NBYTES >> 20)))
    plain = {
        kind: [_dialled(pipe.recv(), control) for _ in range(connections)] for kind, control in PLAIN.items()
    }
    ends = {name: endpoint(0, name, pipe, connections) for name in OURS}
    turn = iter(range(10**6))

    def ours(name: str) -> Callable[[], None]:
        return lambda: ends[name].send(1, (next(turn),), data).wait()

    def close() -> None:
        for end in ends.values():
            end.close()

    ways: Ways = {name: ours(name) for name in ends}
    for kind, sockets in plain.items():
        ways[f"{kind}, threads"] = functools.partial(in_threads, sockets, data, socket.socket.sendall)
        ways[f"{kind}, selector"] = functools.partial(with_selector, sockets, data, selectors.EVENT_WRITE)
    return {**ways, "close": close}


def _dialled(address: tuple[str, int], congestion_control: bytes | None) -> socket.socket:
    connected = socket.create_connection(address)
    if congestion_control is not None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control)
    return connected


def receiver(pipe: Connection, connections: int) -> None:
    buffer = memoryview(bytearray(NBYTES))
    plain: dict[str, list[socket.socket]] = {kind: [] for kind in PLAIN}
    with socket.create_server(("127.0.0.1", 0)) as server:
        for sockets in plain.values():
            for _ in range(connections):
                pipe.send(server.getsockname())
                sockets.append(server.accept()[0])
    ends = {name: endpoint(1, name, pipe, connections) for name in OURS}
    turn = iter(range(10**6))
    while (name := pipe.recv()) is not None:
        receive = ends[name].post_receive(0, (next(turn),), buffer) if name in ends else None
        cpu = time.process_time()
        pipe.send("ready")
        if receive is not None:
            receive.wait()
        elif name.endswith("threads"):
            in_threads(plain[name.split(",")[0]], buffer, receive_all)
        else:
            with_selector(plain[name.split(",")[0]], buffer, selectors.EVENT_READ)
        pipe.send((time.monotonic(), time.process_time() - cpu))
    for end in ends.values():
        end.close()


def endpoint(rank: int, name: str, pipe: Connection, connections: int) -> Endpoint:
    end = Endpoint(
        rank=rank,
        listen_host="127.0.0.1",
        secret="benchmark",
        run=name,
        silence_timeout_s=60,
        checksums=name == "ours, checksums",
    )
    pipe.send(end.address)
    end.connect([Peer(rank=1 - rank, address=pipe.recv(), connections=connections)])
    return end


def shares(sockets: list[socket.socket], data: memoryview) -> list[tuple[socket.socket, memoryview]]:
    size = -(-len(data) // len(sockets))
    return [(one, data[at * size : (at + 1) * size]) for at, one in enumerate(sockets)]


def in_threads(
    sockets: list[socket.socket], data: memoryview, move: Callable[[socket.socket, memoryview], object]
) -> None:
    """A blocking thread per connection."""
    for one in sockets:
        one.setblocking(True)
    threads = [threading.Thread(target=move, args=share) for share in shares(sockets, data)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def receive_all(source: socket.socket, into: memoryview) -> None:
    while into:
        into = into[source.recv_into(into) :]


def with_selector(sockets: list[socket.socket], data: memoryview, events: int) -> None:
    """One thread for all connections."""
    left = {}
    with selectors.DefaultSelector() as selector:
        for one, share in shares(sockets, data):
            one.setblocking(False)
            left[one] = share
            selector.register(one, events)
        while left:
            for key, _ in selector.select():
                one: socket.socket = key.fileobj  # type: ignore[assignment]
                write = events == selectors.EVENT_WRITE
                moved = one.send(left[one]) if write else one.recv_into(left[one])
                left[one] = left[one][moved:]
                if not left[one]:
                    del left[one]
                    selector.unregister(one)


if __name__ == "__main__":
    main()
