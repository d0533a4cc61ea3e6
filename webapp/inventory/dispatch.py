"""Sends tasks to nodes: one connection per node, for each has its own key prefix in the broker.

Messages are in Celery's protocol, by task name and with JSON arguments; nothing of the workers is imported.
Safe between threads (ASGI's thread pool, the control worker).
"""

import atexit
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from celery import Celery
from django.conf import settings
from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import OperationalError

MOST_CONNECTIONS = 64
CONNECT_S = 2.0
ANSWER_S = 3.0


class BrokerDown(ConnectionError):
    """The broker did not take a task: it is away or refuses. Nothing is known to have been sent."""

    def __init__(self, node: str, reason: str) -> None:
        self.node = node
        super().__init__(f"the broker did not take the task for node {node}: {reason}")


class Dispatcher:
    """Producers to the queues of nodes, kept open, the least recently used closed first.

    Parameters
    ----------
    url : of the broker, with rights on every node's keys.
    """

    def __init__(self, url: str, most_connections: int = MOST_CONNECTIONS) -> None:
        self._url = url
        self._most = most_connections
        self._lock = threading.Lock()
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._app = Celery("dispatch", set_as_current=False)
        self._app.conf.update(task_serializer="json", accept_content=["json"], task_ignore_result=True)

    def send(self, node: str, task: str, kwargs: Mapping[str, Any]) -> str:
        """Put a task into the node's queue and return its id.

        Sent again once over a new connection where the old one turns out to be dead, so that a task may
        arrive twice: tasks of nodes are idempotent.

        Raises
        ------
        BrokerDown
            Within about 5 s, where the broker cannot be reached or refuses.
        """
        line = self._line(node)
        with line.lock:
            try:
                try:
                    return line.send(self._app, task, kwargs)
                except line.errors:
                    line.close()
                    return line.send(self._app, task, kwargs)
            except line.errors as error:
                line.close()
                raise BrokerDown(node, str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Close every connection; the next task opens a new one."""
        with self._lock:
            lines = list(self._lines.values())
            self._lines.clear()
        for line in lines:
            with line.lock:
                line.close()

    def _line(self, node: str) -> "_Line":
        with self._lock:
            line = self._lines.get(node)
            if line is None:
                line = self._lines[node] = _Line(self._url, node)
            self._lines.move_to_end(node)
            spare = [self._lines.popitem(last=False)[1] for _ in range(len(self._lines) - self._most)]
        for old in spare:
            with old.lock:
                old.close()
        return line


class _Line:
    """The connection to one node's queue; used by one thread at a time, under `lock`."""

    def __init__(self, url: str, node: str) -> None:
        self.lock = threading.Lock()
        self._url = url
        self._prefix = f"node:{node}:"
        self._queue = Queue(
            f"node.{node}", Exchange(f"node.{node}", type="direct"), routing_key=f"node.{node}"
        )
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        probe = Connection(url)
        self.errors: tuple[type[BaseException], ...] = (
            *probe.connection_errors,
            *probe.channel_errors,
            OperationalError,
        )

    def send(self, app: Celery, task: str, kwargs: Mapping[str, Any]) -> str:
        if self._producer is None:
            self._connection = Connection(
                self._url,
                transport_options={
                    "global_keyprefix": self._prefix,
                    "socket_connect_timeout": CONNECT_S,
                    "socket_timeout": ANSWER_S,
                    "max_retries": 0,
                },
            )
            self._producer = Producer(self._connection.default_channel)
        result = app.send_task(
            task,
            kwargs=dict(kwargs),
            queue=self._queue,
            producer=self._producer,
            retry=False,
            ignore_result=True,
            declare=[self._queue],
        )
        return str(result.id)

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.release()


class Send(Protocol):
    """As `send_task`: what tests hand in instead of it."""

    def __call__(self, node_name: str, task: str, kwargs: Mapping[str, Any]) -> str: ...


def send_task(node_name: str, task: str, kwargs: Mapping[str, Any]) -> str:
    """Put `task` into the queue of a node and return the task's id; see `Dispatcher.send`.

    Raises
    ------
    BrokerDown
        The broker cannot be reached or refuses.
    """
    return _shared().send(node_name, task, kwargs)


_making = threading.Lock()


def _shared() -> Dispatcher:
    with _making:  # two threads that begin at once get the same
        return _dispatcher()


@cache
def _dispatcher() -> Dispatcher:
    dispatcher = Dispatcher(settings.VALKEY_URL)
    atexit.register(dispatcher.close)
    return dispatcher
