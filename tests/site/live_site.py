"""The site's ASGI application behind uvicorn, in a thread of the test."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tests.waiting import LIMIT_S, until
from webapp.edge.connections import BoundedProtocol
from webapp.prefill.gateway.connections import close_connections


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: object = None) -> None:
        await close_connections()
        await super().shutdown(sockets)  # type: ignore[arg-type]


@contextmanager
def live_site() -> Iterator[str]:
    """Its address. Ends with everything that it has begun."""
    from webapp.asgi import application

    config = uvicorn.Config(
        application,
        host="127.0.0.1",
        port=0,
        http=BoundedProtocol,
        lifespan="off",
        log_config=None,
        loop="asyncio",
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    until(lambda: server.started, "the server")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        assert not thread.is_alive()
