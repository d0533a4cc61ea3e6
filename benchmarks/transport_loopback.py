"""The transport against plain sockets over loopback: side by side, in turn, same number of connections.

    python -m benchmarks.transport_loopback [connections …]

One GiB from one process to another, five times each way of sending, taking turns so that other work on the
machine hits all alike; ratios are of the medians. Plain sockets are given the best of two ways: a thread per
connection that sends an equal share with blocking calls, and one thread with a selector. Bars: 90 % with
checksums off, 60 % with them on. CPU is what both processes spent on one GiB.
"""

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

from engine.runtime.transport import Endpoint, Peer

NBYTES = 1 << 30
REPEATS = 5
Send = Callable[[int], None]
Ways = dict[str, Send]
ROWS = ("plain, threads", "plain, selector", "ours, unchecked", "ours, checksums")


def main() -> None:
    counts = [int(argument) for argument in sys.argv[1:]] or [1, 4, 8]
    print("connections  way                GB/s  of plain  CPU s/GiB")
    failed = False
    for connections in counts:
        figures = measure(connections)
        plain = max(rate for name, (rate, _) in figures.items() if name.startswith("plain"))
        for name, (rate, cpu_s) in figures.items():
            print(f"{connections:11}  {name:16} {rate / 1e9:6.2f} {100 * rate / plain:7.0f} %  {cpu_s:9.2f}")
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


def sender_ways(pipe: Connection, connections: int) -> dict[str, Callable[[], None]]:
    """What sends the gibibyte, by way; both processes connect in the same order."""
    data = memoryview(bytearray(os.urandom(1 << 20) * (NBYTES >> 20)))
    plain = [socket.create_connection(pipe.recv()) for _ in range(connections)]
    ends = {name: endpoint(0, name, pipe, connections) for name in ROWS[2:]}
    turn = iter(range(10**6))

    def ours(name: str) -> Callable[[], None]:
        return lambda: ends[name].send(1, (next(turn),), data).wait()

    def close() -> None:
        for end in ends.values():
            end.close()

    return {
        "plain, threads": lambda: in_threads(plain, data, socket.socket.sendall),
        "plain, selector": lambda: with_selector(plain, data, selectors.EVENT_WRITE),
        **{name: ours(name) for name in ends}, "close": close,
    }  # fmt: skip


def receiver(pipe: Connection, connections: int) -> None:
    buffer = memoryview(bytearray(NBYTES))
    plain = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(connections):
            pipe.send(server.getsockname())
            plain.append(server.accept()[0])
    ends = {name: endpoint(1, name, pipe, connections) for name in ROWS[2:]}
    turn = iter(range(10**6))
    while (name := pipe.recv()) is not None:
        receive = ends[name].post_receive(0, (next(turn),), buffer) if name in ends else None
        cpu = time.process_time()
        pipe.send("ready")
        if receive is not None:
            receive.wait()
        elif name == "plain, threads":
            in_threads(plain, buffer, receive_all)
        else:
            with_selector(plain, buffer, selectors.EVENT_READ)
        pipe.send((time.monotonic(), time.process_time() - cpu))
    for end in ends.values():
        end.close()


def endpoint(rank: int, name: str, pipe: Connection, connections: int) -> Endpoint:
    end = Endpoint(
        rank=rank, listen_host="127.0.0.1", secret="benchmark", run=name, silence_timeout_s=60,
        checksums=name == "ours, checksums",
    )  # fmt: skip
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
