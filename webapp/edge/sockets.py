"""The outside of the WebSockets: who may open one, and what a wrong address or an outage answers."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.utils.http import is_same_domain

from webapp.common import database
from webapp.edge.failures import AWAY
from webapp.edge.refusals import App, Receive, Refusal, Scope, Send

log = structlog.get_logger(__name__)
Origin = tuple[str, str, int | None]  # scheme, host, port
PORTS = {"http": 80, "https": 443}
TRY_AGAIN = 1011
STRANGE = Refusal(
    status=403,
    code="origin",
    title="Another site",
    text="Only pages of this site may open its sockets. MERIDIAN_ORIGINS names others.",
)
# At every address that has no socket.
NOWHERE = Refusal(status=404, code="unknown_url", title="Nothing here", text="There is no socket.")


class Guarded:
    """An ASGI application before the sockets: their own pages alone may open them, and an outage closes them.

    A browser sends cookies along with a WebSocket of any page, and says in Origin which page that is. It must
    be of this site: the same scheme, host and port as the request's, or one of the trusted origins of forms.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not of_this_site(scope):
            await STRANGE(scope, receive, send)
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
                await AWAY(scope, receive, send)


def of_this_site(scope: Scope) -> bool:
    """Whether the page that opens the socket is one of this site."""
    headers = dict(scope.get("headers", ()))
    origin = _origin(headers.get(b"origin", b"").decode("latin1"))
    host = headers.get(b"host", b"").decode("latin1")
    if origin is None or not validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS):
        return False
    scheme = {"ws": "http", "wss": "https"}.get(scope.get("scheme", "ws"), "")
    own = _origin(f"{scheme}://{host}")
    return origin == own or any(_fits(origin, trusted) for trusted in settings.CSRF_TRUSTED_ORIGINS)


def _fits(origin: Origin, trusted: str) -> bool:
    """Whether a trusted origin of forms, such as https://*.example.org, is `origin`."""
    wanted = _origin(trusted.replace("://*.", "://."))
    if wanted is None:
        return False
    return origin[::2] == wanted[::2] and is_same_domain(origin[1], wanted[1])


def _origin(text: str) -> Origin | None:
    try:
        parts = urlsplit(text.lower())
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # a port that is none
        return None
    return (parts.scheme, parts.hostname, port) if parts.scheme in PORTS and parts.hostname else None
