"""Requests to /v1/ are held in memory while they are read: Django would spool longer ones to a disk."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

from django.conf import settings

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
PREFIX = "/v1/"
BODY_S = 30.0  # for a client to send its whole request


class InMemory:
    """An ASGI application before Django's: refuses bodies of /v1/ that are too large, or come too slowly.

    api : has what is under /v1/, `app` all else.
    """

    def __init__(self, app: App, *, api: App) -> None:
        self._app, self._api = app, api

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        most = min(settings.DATA_UPLOAD_MAX_MEMORY_SIZE, settings.FILE_UPLOAD_MAX_MEMORY_SIZE)
        try:
            async with asyncio.timeout(BODY_S):
                body = await _read(receive, most)
        except TimeoutError:
            await _refuse(
                send, 408, "request_timeout", f"The request body did not arrive within {BODY_S:g} s."
            )
            return
        except OverflowError:
            await _refuse(send, 413, "request_too_large", f"The request body is larger than {most:,} bytes.")
            return
        if body is not None:
            await self._api(scope, _replayed(body, receive), send)


async def _read(receive: Receive, most: int) -> bytes | None:
    """The body; None where the client has left. Raises OverflowError."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise OverflowError
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    first = True

    async def again() -> Mapping[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    headers = {
        "content-type": "application/json",
        "x-request-id": f"req_{uuid4().hex}",
        "cache-control": "no-store",
        "connection": "close",
    }
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
