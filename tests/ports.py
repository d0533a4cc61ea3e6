"""Ports for servers that tests start."""

import random
import socket

# Below what systems give to outgoing connections: of those, another test's may take a port before the server
# that it was found for is there.
LOWEST, HIGHEST = 20_000, 28_000


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    while True:
        port = random.SystemRandom().randint(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
