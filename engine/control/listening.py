"""A listening socket on an address and port that the node may use."""

import errno
import socket

from engine.errors import InputError

BACKLOG = 1024  # connections that the kernel holds until they are accepted


def listen(host: str, ports: tuple[int, int] | None, rank: int, *, field: str = "ports") -> socket.socket:
    """A listening socket on one of `ports`, tried in turn from a place that differs by rank; None: on any.

    Raises
    ------
    InputError
        Nobody can listen at `host`, or the ports, which are the value of `field`, are all in use.
    """
    first, last = ports or (0, 0)
    count = last - first + 1
    for step in range(count):
        try:
            return socket.create_server((host, first + (rank + step) % count), backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                allowed = f"cannot listen there ({error.strerror}): give the node its own address"
                raise InputError("host", host, allowed) from None
    if count == 1:
        raise InputError(field, first, f"is in use on {host}: give it another one")
    raise InputError(field, f"{first}-{last}", f"all are in use on {host}: give the node more ports")
