"""The ASGI application: pages over HTTP, live runs over WebSocket."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIHandler

http = get_asgi_application()  # before anything that imports models

from channels.auth import AuthMiddlewareStack  # type: ignore[import-untyped]  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # type: ignore[import-untyped]  # noqa: E402
from django.urls import re_path  # noqa: E402

from webapp.checks import require_servers  # noqa: E402
from webapp.edge.bodies import InMemory  # noqa: E402
from webapp.edge.connections import PerAddress  # noqa: E402
from webapp.edge.sockets import NOWHERE, Guarded  # noqa: E402
from webapp.edge.uploads import Uploads  # noqa: E402
from webapp.live.routing import websocket_urlpatterns  # noqa: E402

require_servers()


def _with(middleware: list[str]) -> ASGIHandler:
    """Django with `middleware` alone; it reads the setting once, when it is made."""
    everything, settings.MIDDLEWARE = settings.MIDDLEWARE, middleware
    try:
        return ASGIHandler()
    finally:
        settings.MIDDLEWARE = everything


sockets = URLRouter([*websocket_urlpatterns, re_path("", NOWHERE)])  # type: ignore[arg-type]
application = PerAddress(
    ProtocolTypeRouter(
        {
            "http": Uploads(InMemory(http, api=_with(settings.API_MIDDLEWARE)), django=http),
            "websocket": Guarded(AuthMiddlewareStack(sockets)),
        }
    )
)
