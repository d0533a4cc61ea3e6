"""POST /v1/completions and /v1/chat/completions."""

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import redis
import structlog
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from webapp.common.at_once import AtOnce
from webapp.common.database import is_away
from webapp.prefill.answers import ApiError, answer, body_of, headers, json_object
from webapp.prefill.bearer import caller, no_database, no_quotas, not_allowed
from webapp.prefill.gateway import shapes
from webapp.prefill.gateway.admission import admit, in_thread
from webapp.prefill.gateway.answer_stream import AnswerStream, begin, write_refusal
from webapp.prefill.gateway.calls import CompletionCall, Kind, read
from webapp.prefill.gateway.shapes import Shape
from webapp.prefill.models import ApiKey

log = structlog.get_logger(__name__)
CLIENT_S = 60.0
Serve = Callable[[HttpRequest, ApiKey], Awaitable[HttpResponseBase]]


def prompt_view(serve: Serve) -> Callable[..., Any]:
    """For a view that takes (request, key in force) and may raise ApiError; answers to POST alone."""

    @csrf_exempt
    @login_not_required
    @wraps(serve)
    async def guarded(request: HttpRequest) -> HttpResponseBase:
        try:
            if request.method != "POST":
                return not_allowed("POST")
            return await serve(request, await in_thread(caller, request))
        except ApiError as error:
            return error.response()
        except (redis.RedisError, OSError):
            return no_quotas().response()
        except Exception as error:
            return unforeseen(error).response()

    return guarded


def unforeseen(error: Exception) -> ApiError:
    """The answer to an outage of the database, or to a fault of ours. Where a fault was is logged and not its
    text, which may hold the prompt."""
    if is_away(error):
        return no_database()
    where = [line.strip() for line in traceback.format_tb(error.__traceback__)[-4:]]
    log.error("request failed", error=type(error).__name__, where=where)
    return ApiError(500, "internal_error", "The site failed on this request.")


@prompt_view
async def completions(request: HttpRequest, key: ApiKey) -> HttpResponseBase:
    """A prompt, and the tokens that follow it."""
    return await _serve("completion", request, key)


@prompt_view
async def chat_completions(request: HttpRequest, key: ApiKey) -> HttpResponseBase:
    """Messages, and the assistant's answer."""
    return await _serve("chat", request, key)


async def _serve(kind: Kind, request: HttpRequest, key: ApiKey) -> HttpResponseBase:
    call = read(kind, json_object(body_of(request)))
    stream = await _begun(key, call)
    admission = stream.admission
    shape = Shape(kind=kind, request=admission.id, model=call.model)
    if not call.stream:
        return await _whole(stream, shape)
    return StreamingHttpResponse(
        _pieces(stream, shape, call),
        content_type="text/event-stream",
        headers=headers(admission.id, admission.drawn, admission.datacenter) | {"X-Accel-Buffering": "no"},
    )


open_answers = AtOnce()


async def _begun(key: ApiKey, call: CompletionCall) -> AnswerStream:
    """The answer to a call, one of those that the tenancy may have open at once. Raises ApiError."""
    most = settings.STREAMS_PER_TENANCY
    close = open_answers.open(key.tenancy_id, most)
    if close is None:
        text = f"{most:,} answers of this tenancy are open already."
        raise ApiError(429, "rate_limit_exceeded", text, retry_after_s=1.0)
    try:
        admission = await in_thread(admit, key, call)
        try:
            stream = await begin(admission)
        except ApiError as error:
            await write_refusal(admission, error)
            raise
    except BaseException:
        close()
        raise
    stream.on_close = close
    return stream


async def _whole(stream: AnswerStream, shape: Shape) -> HttpResponse:
    admission = stream.admission
    try:
        body = await whole(stream, shape)
    finally:
        await stream.close()
    return answer(body, drawn=admission.drawn, request=admission.id, datacenter=admission.datacenter)


async def whole(stream: AnswerStream, shape: Shape) -> dict[str, object]:
    """All of an answer in one body. Raises ApiError."""
    text = "".join([token.text async for token in stream.tokens()])
    assert stream.done is not None
    return shape.whole(text, stream.done)


async def _pieces(stream: AnswerStream, shape: Shape, call: CompletionCall) -> AsyncIterator[bytes]:
    """A stream. What breaks off after it began can only be said in an event, without [DONE]."""
    when_sent(stream.leave)
    count = 0
    try:
        async for token in stream.tokens():
            piece = shape.piece(token, first=count == 0)
            count += 1
            if call.continuous_usage:
                piece["usage"] = shapes.usage(stream.prompt_tokens, count)
            with _taken_in_time():
                yield shapes.event(piece)
        assert stream.done is not None
        with _taken_in_time():
            yield shapes.event(shape.end(stream.done))
            if call.include_usage:
                yield shapes.event(shape.totals(stream.done))
            yield shapes.LAST
    except ApiError as error:
        yield shapes.event(error.body)
    except Exception as error:
        yield shapes.event(unforeseen(error).body)
    finally:
        await stream.close()


def when_sent(end: Callable[[], object]) -> None:
    """Call `end` when the task that sends is done: cancelled while it waits for a client, it leaves its
    generator, and so what stands in `finally` there, to the garbage collector."""
    sends = asyncio.current_task()
    assert sends is not None
    sends.add_done_callback(lambda _: end())


@contextmanager
def _taken_in_time() -> Iterator[None]:
    """Around a yield: a client that takes nothing for CLIENT_S is hung up on; the task that sends ends."""
    task = asyncio.current_task()
    assert task is not None
    timer = asyncio.get_running_loop().call_later(CLIENT_S, task.cancel)
    try:
        yield
    finally:
        timer.cancel()
