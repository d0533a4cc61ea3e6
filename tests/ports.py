"""Ports for servers that tests start."""

import random
import socket
import sys

# Below what systems give to outgoing connections: of those, another test's may take a port before the server
# that it was found for is there.
LOWEST, HIGHEST = 20_000, 28_000
_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port of this machine on which nobody listens, and which no other test process is given."""
    while True:
        port = random.SystemRandom().randint(LOWEST, HIGHEST)
        if not _reserve(port):
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _reserve(port: int) -> bool:
    """Until this process ends, by an abstract name that one process can have; Linux alone has them."""
    if sys.platform != "linux":
        return True
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0meridian-test-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved.append(name)
    return True
