"""One plain TCP connection between two nodes; knows nothing of the transport that is measured beside it.

    python -m benchmarks.wan_testbed.flows receive HOST PORT
    python -m benchmarks.wan_testbed.flows rate HOST PORT SECONDS

`rate` prints bytes per second of the connection, measured by the receiver without the first third of the
bytes.
"""

import socket
import struct
import sys
import time

_SIZE = struct.Struct("<Q")
_RATE = struct.Struct("<d")


def receive(host: str, port: int) -> None:
    """Take what one connection sends, and answer each time with the rate of its last two thirds."""
    buffer = memoryview(bytearray(1 << 20))
    with socket.create_server((host, port)) as server:
        print("ready", flush=True)
        connected, _ = server.accept()
    with connected:
        while head := connected.recv(_SIZE.size, socket.MSG_WAITALL):
            (size,) = _SIZE.unpack(head)
            left, mark, since = size, size - size // 3, time.monotonic()
            while left:
                before = left
                left -= connected.recv_into(buffer[: min(left, len(buffer))])
                if before > mark >= left:
                    since, mark = time.monotonic(), left
            connected.sendall(_RATE.pack(mark / max(time.monotonic() - since, 1e-9)))


def rate(host: str, port: int, seconds: float) -> float:
    """Bytes per second of one connection that sends for about `seconds`."""
    with socket.create_connection((host, port)) as connected:
        _send(connected, 2 << 20)  # its window opens
        guess = _send(connected, 4 << 20)
        return _send(connected, max(4 << 20, int(guess * seconds)))


def _send(connected: socket.socket, size: int) -> float:
    """Send `size` bytes; returns the receiver's rate in bytes per second."""
    connected.sendall(_SIZE.pack(size))
    piece = memoryview(bytes(1 << 20))
    for at in range(0, size, len(piece)):
        connected.sendall(piece[: size - at])
    (measured,) = _RATE.unpack(connected.recv(_RATE.size, socket.MSG_WAITALL))
    return float(measured)


def main() -> None:
    """Read what to do, and do it."""
    what, host, port, *rest = sys.argv[1:]
    if what == "receive":
        receive(host, int(port))
    else:
        print(rate(host, int(port), float(rest[0])))


if __name__ == "__main__":
    main()
