"""One of eight connections four times slower: work stealing against an equal split.

    python -m benchmarks.transport_stealing

64 MiB over eight loopback connections that the kernel paces to 200 Mbit/s each (what one of Atlas's carries
at 60 ms), one of them to 50. Equal split: plain sockets, a thread each, every connection sends an eighth.
Five times each, in turn; ratio of the medians. Bar: 3 times as fast; 3.6 is what the rates allow (7.25 to 2).
"""

import multiprocessing
import socket
import statistics
import sys
import time
from multiprocessing.connection import Connection

from benchmarks.transport_loopback import endpoint, in_threads, receive_all

CONNECTIONS = 8
BYTES_PER_S = 25e6
SLOWER = 4
NBYTES = 64 << 20
REPEATS = 5
BAR = 3.0
SO_MAX_PACING_RATE = 47  # Linux; Python's socket module does not name it


def main() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=receiver, args=(theirs,), daemon=True)
    child.start()
    theirs.close()
    plain = [socket.create_connection(ours.recv()) for _ in range(CONNECTIONS)]
    for index, one in enumerate(plain):
        pace(one, index)
    end = endpoint(0, "ours, checksums", ours, CONNECTIONS)
    link = end._links[1]
    for index in range(CONNECTIONS):
        pace(link._connections[index]._socket, index)
    data = memoryview(bytearray(NBYTES))
    seconds: dict[str, list[float]] = {"equal split": [], "work stealing": []}
    for turn in range(REPEATS):
        for name, rows in seconds.items():
            ours.send(name)
            ours.recv()
            begin = time.monotonic()
            if name == "equal split":
                in_threads(plain, data, socket.socket.sendall)
            else:
                end.send(1, (turn,), data).wait()
            rows.append(ours.recv() - begin)
    ours.send(None)
    end.close()
    child.join(30)
    medians = {name: statistics.median(rows) for name, rows in seconds.items()}
    ratio = medians["equal split"] / medians["work stealing"]
    for name, median in medians.items():
        print(f"{name:14} {median:6.2f} s  {NBYTES * 8 / median / 1e6:7.0f} Mbit/s")
    print(f"ratio {ratio:.2f} (bar {BAR:g})")
    sys.exit(ratio < BAR)


def pace(connected: socket.socket, index: int) -> None:
    """Let the kernel send no faster on this connection; one of them is slower."""
    rate = BYTES_PER_S / (SLOWER if index == CONNECTIONS // 2 else 1)
    connected.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, int(rate))


def receiver(pipe: Connection) -> None:
    plain = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(CONNECTIONS):
            pipe.send(server.getsockname())
            plain.append(server.accept()[0])
    end = endpoint(1, "ours, checksums", pipe, CONNECTIONS)
    buffer = memoryview(bytearray(NBYTES))
    turn = 0
    while (name := pipe.recv()) is not None:
        receive = end.post_receive(0, (turn,), buffer) if name == "work stealing" else None
        pipe.send("ready")
        if receive is None:
            in_threads(plain, buffer, receive_all)
        else:
            receive.wait()
            turn += 1
        pipe.send(time.monotonic())
    end.close()


if __name__ == "__main__":
    main()
