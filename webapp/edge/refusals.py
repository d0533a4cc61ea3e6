"""What a client gets that is refused before any page or API is asked: in the shape of where it asked."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any
from uuid import uuid4

from django.http import HttpResponse, JsonResponse
from django.template.loader import render_to_string

from webapp.prefill.answers import ApiError

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
API = "/v1/"  # speaks as OpenAI's
MACHINES = "/api/"  # nodes ask there


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An HTTP status with its reason; where waiting helps, for how long.

    code : for machines.  title, text : for people.  closes : the connection; else its rest is read first.
    """

    status: int
    code: str
    title: str
    text: str
    retry_after_s: float | None = None
    closes: bool = True

    def response(self, path: str) -> HttpResponse:
        """The answer at `path`. Making it asks neither the database nor the broker."""
        answer: HttpResponse
        if path.startswith(API):
            number = f"req_{uuid4().hex}"
            error = ApiError(
                self.status, self.code, self.text, retry_after_s=self.retry_after_s, request=number
            )
            answer = error.response()
        elif path.startswith(MACHINES):
            body = {"field": "site", "value": "", "reason": self.title, "remedy": self.text}
            answer = JsonResponse(body, status=self.status)
        else:
            text = render_to_string("refused.html", {"heading": self.title, "text": self.text})
            answer = HttpResponse(text, status=self.status)
        if self.retry_after_s is not None:
            answer["Retry-After"] = str(max(1, ceil(self.retry_after_s)))
        answer["Cache-Control"] = "no-store"
        answer["Content-Length"] = str(len(answer.content))
        return answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application: answer a request or the handshake of a WebSocket."""
        kind = "http.response"
        if scope["type"] == "websocket":
            kind = "websocket.http.response"
            if kind not in scope.get("extensions", {}):  # the server can only say 403
                await send({"type": "websocket.close"})
                return
        answer = self.response(scope["path"])
        headers = [(name.lower().encode(), value.encode()) for name, value in answer.items()]
        if self.closes:
            headers.append((b"connection", b"close"))
        await send({"type": f"{kind}.start", "status": self.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": answer.content})
