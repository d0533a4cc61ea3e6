"""Bodies and headers of the API: as OpenAI's, so that its clients read them."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, JsonResponse, UnreadablePostError

from engine.documents import read_json
from engine.inputs import nearest
from webapp.common.database import RETRY_AFTER_S
from webapp.common.logs import request_id
from webapp.prefill.quota import Drawn

# Type of an error body by HTTP status.
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "service_unavailable_error",
}


@dataclass
class ApiError(Exception):
    """A refusal: HTTP status, a code that machines read, a sentence, and how long to wait (seconds)."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    drawn: Drawn | None = None
    request: str = ""  # its id, where it has one of the site's own

    @property
    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "message": self.message,
            "type": TYPES.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
        }
        if self.retry_after_s is not None:
            error["retry_after_ms"] = ceil(1e3 * self.retry_after_s)
        return {"error": error}

    def response(self) -> JsonResponse:
        reply = answer(self.body, status=self.status, drawn=self.drawn, request=self.request)
        if self.retry_after_s is not None:
            reply["Retry-After"] = str(max(1, ceil(self.retry_after_s)))  # whole seconds, as HTTP wants them
        if self.status == 401:
            reply["WWW-Authenticate"] = "Bearer"
        return reply


def database_away() -> ApiError:
    """The refusal while PostgreSQL does not answer."""
    text = "The site cannot check keys or record usage at the moment. Try again later."
    return ApiError(503, "unavailable", text, retry_after_s=float(RETRY_AFTER_S))


def no_such_model(name: str) -> ApiError:
    """The refusal of a model that is not the tenancy's: for its key it does not exist."""
    text = f"The model {name[:80]!r} does not exist for this key; GET /v1/models lists those that do."
    return ApiError(404, "model_not_found", text, param="model")


def unknown_field(name: str, fields: Iterable[str]) -> ApiError:
    """The refusal of a field that nobody knows: it may be one that would change the answer."""
    hint = nearest(name[:40], fields)
    text = f"Unknown field {name[:40]!r}: {hint}{'' if hint.endswith('?') else '.'}"
    return ApiError(400, "unknown_field", text, param=name[:40])


def body_of(request: HttpRequest) -> bytes:
    """Raises ApiError."""
    try:
        return request.body
    except RequestDataTooBig:
        raise ApiError(413, "request_too_large", "The request's body is too large.") from None
    except UnreadablePostError:
        raise ApiError(400, "invalid_json", "The body could not be read.") from None


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object that `body` is. Raises ApiError: what is wrong with it, never what stands in it."""
    try:
        document = read_json(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ApiError(400, "invalid_json", "The body must be one JSON object.")
    return document


def answer(
    body: dict[str, Any],
    *,
    status: int = 200,
    drawn: Drawn | None = None,
    request: str = "",
    datacenter: str = "",
) -> JsonResponse:
    """A JSON answer with the request's id and, where they are known, the rate limits of the tenancy."""
    reply = JsonResponse(body, status=status, headers=headers(request or request_id(), drawn, datacenter))
    reply["Content-Length"] = str(len(reply.content))
    return reply


def headers(request: str, drawn: Drawn | None, datacenter: str = "") -> dict[str, str]:
    """Of every answer, streamed ones too. datacenter : whose GPUs prefilled; empty: none has."""
    lines = {"x-request-id": request, "Cache-Control": "no-store"}
    if datacenter:
        lines["x-meridian-datacenter"] = datacenter
    if drawn is not None:
        lines["x-ratelimit-limit-tokens"] = str(drawn.limit)
        lines["x-ratelimit-remaining-tokens"] = str(drawn.remaining)
        lines["x-ratelimit-reset-tokens"] = f"{drawn.full_s:.3f}s"
    return lines
