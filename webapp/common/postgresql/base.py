"""Django's PostgreSQL, which says at once that the server is away.

The pool connects in the background and tells nobody why it has nothing to give. Who waits for a connection
would learn after the pool's time-out that the server is away, and every request would wait as long.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from django.db.backends.postgresql import base
from psycopg import OperationalError

CONNECT_S = 2  # a server that does not answer within this is away
KNOWN_S = 1.0  # for how long an answer, or that there was none, holds for all others of this process


class Server:
    """Whether the server takes connections; asked at most once in KNOWN_S seconds of `clock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._error: OperationalError | None = None

    def ask(self, connect: Callable[..., Any], params: dict[str, Any]) -> None:
        """Return if the server takes connections. Raises OperationalError if it does not."""
        with self._lock:  # others wait for this answer
            if self._clock() >= self._asked_at + KNOWN_S:
                self._error = None
                try:
                    connect(**params | {"connect_timeout": CONNECT_S}).close()
                except OperationalError as error:
                    self._error = error.with_traceback(None)
                self._asked_at = self._clock()
            if self._error is not None:
                raise type(self._error)(*self._error.args)


class DatabaseWrapper(base.DatabaseWrapper):
    """Before it waits for the pool to make a connection it asks the server itself."""

    server = Server()

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """As Django's. Raises OperationalError where the server is away."""
        pool: Any = self.pool
        if pool is not None and not pool.get_stats()["pool_available"]:
            self.server.ask(self.Database.connect, conn_params)
        return super().get_new_connection(conn_params)
