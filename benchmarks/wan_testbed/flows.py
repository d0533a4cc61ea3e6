"""Plain TCP between two nodes; knows nothing of the transport that is measured against it.

    python -m benchmarks.wan_testbed.flows receive HOST PORT CONNECTIONS
    python -m benchmarks.wan_testbed.flows rate HOST PORT SECONDS
    python -m benchmarks.wan_testbed.flows messages HOST PORT CONNECTIONS BYTES REPEATS

`rate` prints bytes per second of one connection, measured by the receiver without the first third of the
bytes. `messages` prints a line of seconds for each message, from the first byte until word is back that all
are there; every connection carries an equal share.
"""

import socket
import struct
import sys
import threading
import time

_SHARE = struct.Struct("<Q")
_COUNT = struct.Struct("<d")


def receive(host: str, port: int, connections: int) -> None:
    """Take shares on every connection and answer each with the seconds that its last two thirds took."""
    with socket.create_server((host, port), backlog=256) as server:
        print("ready", flush=True)
        threads = []
        for _ in range(connections):
            connected, _ = server.accept()
            threads.append(threading.Thread(target=_receive_shares, args=(connected,)))
            threads[-1].start()
        for thread in threads:
            thread.join()


def _receive_shares(connected: socket.socket) -> None:
    buffer = memoryview(bytearray(1 << 20))
    with connected:
        while head := connected.recv(_SHARE.size, socket.MSG_WAITALL):
            (share,) = _SHARE.unpack(head)
            left, mark, since = share, share - share // 3, time.monotonic()
            while left:
                before = left
                left -= connected.recv_into(buffer[: min(left, len(buffer))])
                if before > mark >= left:
                    since, mark = time.monotonic(), left
            connected.sendall(_COUNT.pack(mark / max(time.monotonic() - since, 1e-9)))


def rate(host: str, port: int, seconds: float) -> float:
    """Bytes per second of one connection that sends for about `seconds`."""
    with socket.create_connection((host, port)) as connected:
        _send_share(connected, 2 << 20)  # its window opens
        guess = _send_share(connected, 4 << 20)
        return _send_share(connected, max(4 << 20, int(guess * seconds)))


def messages(host: str, port: int, connections: int, nbytes: int, repeats: int) -> None:
    sockets = [socket.create_connection((host, port)) for _ in range(connections)]
    shares = [nbytes * (i + 1) // connections - nbytes * i // connections for i in range(connections)]
    for _ in range(repeats):
        begin = time.monotonic()
        threads = [
            threading.Thread(target=_send_share, args=pair) for pair in zip(sockets, shares, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(time.monotonic() - begin, flush=True)


def _send_share(connected: socket.socket, share: int) -> float:
    """Send `share` bytes; returns the receiver's rate in bytes per second."""
    connected.sendall(_SHARE.pack(share))
    piece = memoryview(bytes(1 << 20))
    for at in range(0, share, len(piece)):
        connected.sendall(piece[: share - at])
    (measured,) = _COUNT.unpack(connected.recv(_COUNT.size, socket.MSG_WAITALL))
    return float(measured)


def main() -> None:
    what, host, port, *rest = sys.argv[1:]
    if what == "receive":
        receive(host, int(port), int(rest[0]))
    elif what == "rate":
        print(rate(host, int(port), float(rest[0])))
    else:
        messages(host, int(port), *(int(value) for value in rest))


if __name__ == "__main__":
    main()
