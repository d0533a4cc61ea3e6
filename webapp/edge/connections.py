"""Connections to the web process: how many, and how long a client may take over its part of each.

uvicorn waits for ever for a client that has sent half a request, or takes no answer, and knows no number of
connections of one address. It has no option for these; a protocol class of ours has (`--http`).
"""

import asyncio
import ipaddress
import resource
from collections.abc import Callable
from typing import Literal

import h11
from django.conf import settings
from uvicorn.protocols.http.h11_impl import H11Protocol

from webapp.common.at_once import AtOnce
from webapp.common.throttle import of_address
from webapp.edge.refusals import App, Receive, Refusal, Scope, Send

OTHER_FILES = 100  # that the process opens beside its connections: servers, logs, modules
AGAIN_S = 5.0
REST_S = 5.0  # for the rest of a request that is answered already: it is read and dropped
TOO_MANY = Refusal(
    status=429,
    code="rate_limit_exceeded",
    title="Too many connections",
    text="Your address has too many connections to this site. Close some, or try again in a moment.",
    retry_after_s=AGAIN_S,
)
FULL = Refusal(
    status=503,
    code="unavailable",
    title="The site is busy",
    text="The site has as many connections as it can hold. Try again in a moment.",
    retry_after_s=AGAIN_S,
)
# What a connection waits for: the head of a request; the rest of one that is answered; that its client reads.
Wait = Literal["head", "rest", "unsent"]
LATE = b"The request did not arrive in time.\n"


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with limits.

    The head of a request must be there HEAD_TIMEOUT_S after the connection, or after its first byte on a
    connection in use (408). An answer that the client does not take for SEND_TIMEOUT_S ends the connection.
    Beyond the number of connections of all, or of one address, a request gets 503 or 429; beyond twice that
    number the connection is closed at once. A named proxy has no number of its own.
    """

    _refusal: Refusal | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # So that the end of an answer is waited for as its middle is, however little has not left.
        transport.set_write_buffer_limits(high=0)
        self._waits: dict[Wait, asyncio.TimerHandle] = {}
        load, self._refusal = self._load()
        if load > 2.0:
            transport.abort()
            return
        if self._refusal is not None:
            self.app = self._refusal
        self._wait("head", settings.HEAD_TIMEOUT_S, self._late)

    def _load(self) -> tuple[float, Refusal | None]:
        """The share of the connections that may be open, this one counted, and the refusal if it is above 1.

        The server's own set is counted: there is no second account that could go wrong.
        """
        address = of_address(self.client[0]) if self.client else ""
        of_all = len(self.connections) / most_connections()
        if of_all > 1:
            return of_all, FULL
        if _is_proxy(address):
            return of_all, None
        clients = [getattr(one, "client", None) for one in self.connections]
        same = len([client for client in clients if client and of_address(client[0]) == address])
        share = same / settings.CONNECTIONS_PER_ADDRESS
        return share, TOO_MANY if share > 1 else None

    def _should_upgrade(self) -> bool:
        """A WebSocket that is one too many is refused as any other request."""
        return self._refusal is None and super()._should_upgrade()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            self._stop("rest")
            self._wait("head", settings.HEAD_TIMEOUT_S, self._late)
            return
        self._stop("head")
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE:
            self._wait("rest", REST_S, self.transport.close)

    def _late(self) -> None:
        """The head has not come. Who has sent a part of it is told so."""
        self._stop("head")
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            headers = [("content-type", "text/plain"), ("connection", "close")]
            headers.append(("content-length", str(len(LATE))))
            answer = h11.Response(status_code=408, headers=headers, reason=b"Request Timeout")
            for event in (answer, h11.Data(data=LATE), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """From here on another protocol has the connection, with limits of its own."""
        self._stop("head", "rest", "unsent")
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait("unsent", settings.SEND_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("unsent")
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("head", "rest", "unsent")
        super().connection_lost(exc)

    def _wait(self, what: Wait, seconds: float, then: Callable[[], object]) -> None:
        """Do `then` in so many seconds; where `what` is waited for already, the time goes on."""
        if what not in self._waits:
            self._waits[what] = self.loop.call_later(seconds, then)

    def _stop(self, *what: Wait) -> None:
        for one in what:
            if timer := self._waits.pop(one, None):
                timer.cancel()


def most_connections() -> int:
    """How many connections the process may hold: what is set, and what the system lets it open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return int(settings.MOST_CONNECTIONS)
    return max(1, min(settings.MOST_CONNECTIONS, files - OTHER_FILES))


def _is_proxy(address: str) -> bool:
    """Whether `address` is a named proxy: its connections are those of many clients."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in settings.PROXIES)


class PerAddress:
    """An ASGI application before all others: one address has a number of requests and sockets at once.

    Behind a proxy the connections are the proxy's, and the address is what the proxy says.
    """

    def __init__(self, app: App) -> None:
        self._app, self._open = app, AtOnce()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = of_address((scope.get("client") or ("",))[0])
        close = self._open.open(address, settings.CONNECTIONS_PER_ADDRESS)
        if close is None:
            await TOO_MANY(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            close()
