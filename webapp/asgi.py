"""The ASGI application: pages over HTTP, live runs over WebSocket."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from django.core.asgi import get_asgi_application

http = get_asgi_application()  # before anything that imports models

from channels.auth import AuthMiddlewareStack  # type: ignore[import-untyped]  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # type: ignore[import-untyped]  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # type: ignore[import-untyped]  # noqa: E402

from webapp.checks import require_servers  # noqa: E402
from webapp.live.routing import websocket_urlpatterns  # noqa: E402
from webapp.prefill.gateway.bodies import InMemory  # noqa: E402

require_servers()

application = ProtocolTypeRouter(
    {
        "http": InMemory(http),
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
