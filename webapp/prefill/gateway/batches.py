"""POST /v1/batches: many requests in, their answers out, over one connection; nothing of them is kept.

OpenAI's batches keep a file of prompts until somebody fetches the answers. Prompts are never stored here, so
a batch lives as long as its connection: lines of JSON as in OpenAI's input files, answered by lines as in its
output files, each when it is ready.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from pydantic import Field
from redis import RedisError

from engine.errors import InputError
from engine.inputs import Document, parse
from webapp.common.logs import request_id
from webapp.prefill.answers import ApiError, body_of, headers, json_object
from webapp.prefill.bearer import no_quotas, recheck
from webapp.prefill.gateway.admission import Admission, admit, in_thread, new_id
from webapp.prefill.gateway.answer_stream import begin, write_refusal
from webapp.prefill.gateway.calls import CompletionCall, Kind, read
from webapp.prefill.gateway.shapes import Shape
from webapp.prefill.gateway.views import prompt_view, unforeseen, when_sent, whole
from webapp.prefill.models import ApiKey
from webapp.prefill.services import drop_request

MOST_LINES = 1_000
AT_ONCE = 8  # requests of a batch that are with prefill coordinators, or wait to be
BATCH_S = 3_600.0  # after so long what was refused is not tried again
LEAST_WAIT_S, MOST_WAIT_S = 0.2, 30.0
KINDS: dict[str, Kind] = {"/v1/completions": "completion", "/v1/chat/completions": "chat"}


class Line(Document):
    """A line of a batch, as in OpenAI's input files."""

    custom_id: Annotated[str, Field(min_length=1, max_length=200)]
    method: Literal["POST"] = "POST"
    url: Literal["/v1/completions", "/v1/chat/completions"]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a line."""

    custom_id: str
    request: str
    status: int
    body: dict[str, Any]

    @property
    def line(self) -> bytes:
        response = {"status_code": self.status, "request_id": self.request, "body": self.body}
        entry = {"id": self.request, "custom_id": self.custom_id, "response": response, "error": None}
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


@prompt_view
async def batches(request: HttpRequest, key: ApiKey) -> HttpResponseBase:
    """Lines of requests, answered by lines in the order in which they are ready."""
    requests = lines(body_of(request), request.content_type or "")
    return StreamingHttpResponse(
        _answers(key, requests),
        content_type="application/x-ndjson",
        headers=headers(request_id(), None) | {"X-Accel-Buffering": "no"},
    )


def lines(body: bytes, content_type: str) -> list[Line]:
    """The lines of a batch. Raises ApiError."""
    if content_type == "application/json":
        text = (
            "Batches here are lines of JSON in the request itself (application/x-ndjson): prompts are never "
            "stored, so there are no files and no batches to fetch later."
        )
        raise ApiError(400, "batches_unsupported", text)
    requests = []
    for number, row in enumerate(filter(None, map(bytes.strip, body.split(b"\n"))), 1):
        if number > MOST_LINES:
            raise ApiError(413, "request_too_large", f"A batch has at most {MOST_LINES:,} lines.")
        try:
            requests.append(parse(Line, json_object(row)))
        except ApiError as error:
            raise ApiError(400, error.code, f"Line {number}: it must be one JSON object.") from None
        except InputError as error:
            message = f"Line {number}: {error.field}: {error.allowed}."
            raise ApiError(400, "invalid_value", message, param=error.field) from None
    if not requests:
        raise ApiError(400, "invalid_value", "The batch is empty.")
    if len({line.custom_id for line in requests}) < len(requests):
        raise ApiError(400, "invalid_value", "custom_id must be different on every line.", param="custom_id")
    return requests


async def _answers(key: ApiKey, requests: list[Line]) -> AsyncIterator[bytes]:
    """AT_ONCE lines are worked on; whoever reads slowly keeps the next ones waiting."""
    waiting = iter(requests)
    until = asyncio.get_running_loop().time() + BATCH_S
    ready: asyncio.Queue[Answer] = asyncio.Queue(maxsize=AT_ONCE)

    async def work() -> None:
        for line in waiting:
            await ready.put(await _answer(key, line, until))

    workers = [asyncio.create_task(work()) for _ in range(min(AT_ONCE, len(requests)))]

    def stop() -> None:
        for worker in workers:
            worker.cancel()

    when_sent(stop)
    try:
        for _ in requests:
            yield (await ready.get()).line
    finally:
        stop()
        await asyncio.gather(*workers, return_exceptions=True)


async def _answer(key: ApiKey, line: Line, until: float) -> Answer:
    kind = KINDS[line.url]
    try:
        call = read(kind, line.body)
        if call.stream:
            raise ApiError(
                400, "unsupported_field", "A batch cannot stream: leave out stream.", param="stream"
            )
        return await _tried(key, line, call, until)
    except ApiError as error:
        request = error.request or new_id()
        return Answer(custom_id=line.custom_id, request=request, status=error.status, body=error.body)


async def _tried(key: ApiKey, line: Line, call: CompletionCall, until: float) -> Answer:
    """Again and again, as long as waiting helps. Raises ApiError."""
    loop = asyncio.get_running_loop()
    while True:
        admission: Admission | None = None
        try:
            current = await in_thread(recheck, key)
            admission = await in_thread(admit, current, call, in_batch=True)
            stream = await begin(admission)
            try:
                body = await whole(stream, Shape(kind=call.kind, request=admission.id, model=call.model))
            finally:
                await stream.close()
            return Answer(custom_id=line.custom_id, request=admission.id, status=200, body=body)
        except (RedisError, OSError):
            error = no_quotas()
        except ApiError as refused:
            error = refused
        except Exception as unknown:
            error = unforeseen(unknown)
        wait_s = min(MOST_WAIT_S, max(LEAST_WAIT_S, error.retry_after_s or 0.0))
        if error.retry_after_s is None or loop.time() + wait_s > until:
            if admission is not None:
                await write_refusal(admission, error)
            raise error
        if admission is not None:
            await in_thread(drop_request, admission.id)  # it is asked again, as another request
        await asyncio.sleep(wait_s)
