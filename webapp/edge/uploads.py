"""Traces that people upload, of runs and of requests: larger than other bodies, taken piece by piece, and
only of who is logged in.

Django writes a long body to a temporary file as it arrives. Here it is told when to stop: at a size, where
nothing comes any more, and where it comes too slowly.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from channels.auth import AuthMiddlewareStack  # type: ignore[import-untyped]
from django.conf import settings

from webapp.common import database
from webapp.common.at_once import AtOnce
from webapp.common.throttle import of_address
from webapp.edge.failures import AWAY
from webapp.edge.refusals import App, Receive, Refusal, Scope, Send

UPLOADS = ("/traces/new/", "/prefill/replays/new/")
FORM_BYTES = 100_000  # of a body, beside the files
OF_ONE_ADDRESS = 3  # largest traces that one address may send at the same time
SLOWEST_BYTES_PER_S = 100_000
_BUSY = Refusal(
    status=429,
    code="rate_limit_exceeded",
    title="Too many uploads at once",
    text="Your address uploads too many traces at the same time. Try again in a moment.",
    retry_after_s=5.0,
)


class Uploads:
    """An ASGI application before the one that reads bodies whole: uploads of traces go straight to `django`.

    What is small, or of nobody that is logged in, goes to `app` as any other request.
    """

    def __init__(self, app: App, *, django: App) -> None:
        self._app, self._django, self._open = app, django, AtOnce()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = _declared(scope)
        try:
            goes_through = size > settings.LARGEST_BODY_BYTES and await _is_logged_in(scope)
        except Exception as error:
            if not database.is_away(error):
                raise
            await AWAY(scope, receive, send)
            return
        if not goes_through:
            await self._app(scope, receive, send)
            return
        most = settings.LARGEST_TRACE_BYTES + FORM_BYTES
        if size > most:
            await _too_large()(scope, receive, send)
            return
        address = of_address((scope.get("client") or ("",))[0])
        close = self._open.open(address, OF_ONE_ADDRESS * most, size)
        if close is None:
            await _BUSY(scope, receive, send)
            return
        try:
            await self._django(scope, _Bounded(receive, size), send)
        except _TooSlowError:
            await _too_slow()(scope, receive, send)
        finally:
            close()


def _declared(scope: Scope) -> int:
    """The bytes of the upload that a request announces; 0 where it is none, or says no size."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in UPLOADS:
        return 0
    text = dict(scope.get("headers", ())).get(b"content-length", b"").decode("latin1")
    return int(text) if text.isdecimal() and len(text) < 20 else 0


async def _is_logged_in(scope: Scope) -> bool:
    """Whether the cookies of a request are of a session that somebody has."""
    user: Any = None

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal user
        user = scope["user"]

    async def nothing(*message: Any) -> Mapping[str, Any]:
        return {}

    await AuthMiddlewareStack(note)(dict(scope), nothing, nothing)
    return bool(user is not None and user.is_authenticated)


class _TooSlowError(Exception):
    pass


class _Bounded:
    """A request's messages, each within a time, and all of `size` bytes at a least rate."""

    def __init__(self, receive: Receive, size: int) -> None:
        self._receive = receive
        length_s = settings.BODY_TIMEOUT_S + size / SLOWEST_BYTES_PER_S
        self._until = asyncio.get_running_loop().time() + length_s
        self._ended = False

    async def __call__(self) -> Mapping[str, Any]:
        if self._ended:  # Django waits for the client to leave, for as long as it answers
            return await self._receive()
        left_s = self._until - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, min(settings.BODY_TIMEOUT_S, left_s))):
                message = await self._receive()
        except TimeoutError:
            raise _TooSlowError from None
        self._ended = not message.get("more_body", False)
        return message


def _too_large() -> Refusal:
    text = f"The trace is larger than {settings.LARGEST_TRACE_BYTES:,} bytes. Upload a shorter one."
    title = "The trace is too large"
    return Refusal(status=413, code="request_too_large", title=title, text=text, closes=False)


def _too_slow() -> Refusal:
    text = f"The upload stopped for {settings.BODY_TIMEOUT_S:g} s, or was too slow."
    return Refusal(status=408, code="request_timeout", title="The upload took too long", text=text)
