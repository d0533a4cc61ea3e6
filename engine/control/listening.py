"""A listening socket on an address and port that the node may use."""

import errno
import socket

from engine.errors import InputError


def listen(host: str, ports: tuple[int, int] | None, rank: int) -> socket.socket:
    """A listening socket on one of `ports`, tried in turn from a place that differs by rank."""
    if ports is None:
        return socket.create_server((host, 0), backlog=512)
    first, last = ports
    count = last - first + 1
    for step in range(count):
        try:
            return socket.create_server((host, first + (rank + step) % count), backlog=512)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                allowed = f"cannot listen there ({error.strerror}): give the node its own address"
                raise InputError("host", host, allowed) from None
    raise InputError("ports", f"{first}-{last}", f"all are in use on {host}: give the node more ports")
