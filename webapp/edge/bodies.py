"""Bodies of requests are read whole before Django sees them, within a size and a time.

Django would take a body of any length, and spool it to a disk, before it asks who sends it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from webapp.common.at_once import AtOnce
from webapp.common.throttle import of_address
from webapp.edge.refusals import API, App, Receive, Refusal, Scope, Send

DOCUMENTS = (API, "/placement/")  # prompts; documents that people upload
OF_ONE_ADDRESS = 16  # whole documents that one address may send at the same time
_reading = AtOnce()


class InMemory:
    """An ASGI application before Django's: refuses bodies that are too large, or come too slowly.

    api : has what is under /v1/, `app` all else.
    """

    def __init__(self, app: App, *, api: App) -> None:
        self._app, self._api = app, api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await _within(scope, receive)
        except _RefusedError as error:
            await error.refusal(scope, receive, send)
            return
        if body is not None:
            app = self._api if scope["path"].startswith(API) else self._app
            await app(scope, _replayed(body, receive), send)


class _RefusedError(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


def most_bytes(path: str) -> int:
    """The largest body that `path` takes."""
    many = path.startswith(DOCUMENTS)
    return int(settings.LARGEST_DOCUMENT_BYTES if many else settings.LARGEST_BODY_BYTES)


async def _within(scope: Scope, receive: Receive) -> bytes | None:
    """The body; None where the client has left. Raises _RefusedError."""
    most = most_bytes(scope["path"])
    headers = dict(scope.get("headers", ()))
    # Until it is there a body counts as it was declared; a chunked one as the largest.
    declared = headers.get(b"content-length", b"").decode("latin1")
    size = int(declared) if declared.isdecimal() else most if b"transfer-encoding" in headers else 0
    if size > most:
        raise _RefusedError(_too_large(most))
    address = of_address((scope.get("client") or ("",))[0])
    close = _reading.open(address, OF_ONE_ADDRESS * settings.LARGEST_DOCUMENT_BYTES, size)
    if close is None:
        raise _RefusedError(_BUSY)
    try:
        async with asyncio.timeout(settings.BODY_TIMEOUT_S):
            return await _read(receive, most)
    except TimeoutError:
        raise _RefusedError(_too_slow()) from None
    finally:
        close()


async def _read(receive: Receive, most: int) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise _RefusedError(_too_large(most))
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


def _too_large(most: int) -> Refusal:
    text = f"The request body is larger than {most:,} bytes."
    title = "The request is too large"
    # Closed at once, the connection would be reset before a client that still sends has read the answer.
    return Refusal(status=413, code="request_too_large", title=title, text=text, closes=False)


def _too_slow() -> Refusal:
    text = f"The request body did not arrive within {settings.BODY_TIMEOUT_S:g} s."
    return Refusal(status=408, code="request_timeout", title="The request took too long", text=text)


_BUSY = Refusal(
    status=429,
    code="rate_limit_exceeded",
    title="Too many requests at once",
    text="Your address sends too many large requests at the same time. Try again in a moment.",
    retry_after_s=1.0,
)
