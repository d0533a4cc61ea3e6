"""The outside of the WebSockets: who may open one, and what a wrong address or an outage answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.http.request import is_same_domain, split_domain_port, validate_host

from webapp.common import database

log = structlog.get_logger(__name__)
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Origin = tuple[str, str, int | None]  # scheme, host, port
PORTS = {"http": 80, "https": 443}
TRY_AGAIN = 1011


class Guarded:
    """An ASGI application before the sockets: their own pages alone may open them, and an outage closes them.

    A browser sends cookies along with a WebSocket of any page, and says in Origin which page that is. It must
    be of this site: the same scheme, host and port as the request's, or one of the trusted origins of forms.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not of_this_site(scope):
            await refuse(scope, send, 403)
            return
        begun = False

        async def noted(message: Mapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if not database.is_away(error):
                raise
            log.warning("socket closed: the database does not answer", path=scope["path"])
            if begun:
                await send({"type": "websocket.close", "code": TRY_AGAIN})
            else:
                await refuse(scope, send, 503)


async def no_such_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer at every address that has no socket."""
    await refuse(scope, send, 404)


async def refuse(scope: Scope, send: Send, status: int) -> None:
    """Answer the handshake with an HTTP status; where the server cannot, it says 403."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    headers = [(b"content-length", b"0"), (b"cache-control", b"no-store")]
    if status == 503:
        headers.append((b"retry-after", str(database.RETRY_AFTER_S).encode()))
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": b""})


def of_this_site(scope: Scope) -> bool:
    """Whether the page that opens the socket is one of this site."""
    headers = dict(scope.get("headers", ()))
    origin = _origin(headers.get(b"origin", b"").decode("latin1"))
    host = headers.get(b"host", b"").decode("latin1")
    if origin is None or not validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS):
        return False
    scheme = {"ws": "http", "wss": "https"}.get(scope.get("scheme", "ws"), "")
    return origin == _origin(f"{scheme}://{host}") or any(
        map(origin_is(origin), settings.CSRF_TRUSTED_ORIGINS)
    )


def origin_is(origin: Origin) -> Callable[[str], bool]:
    """Whether a trusted origin of forms, such as https://*.example.org, is `origin`."""

    def fits(trusted: str) -> bool:
        wanted = _origin(trusted.replace("://*.", "://."))
        if wanted is None:
            return False
        return origin[::2] == wanted[::2] and is_same_domain(origin[1], wanted[1])

    return fits


def _origin(text: str) -> Origin | None:
    try:
        parts = urlsplit(text.lower())
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # a port that is none
        return None
    return (parts.scheme, parts.hostname, port) if parts.scheme in PORTS and parts.hostname else None
