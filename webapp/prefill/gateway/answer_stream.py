"""The answer to one request, from the coordinator's first reply to its record in the usage.

The answer begins with the first token: whatever goes wrong before has its HTTP status. What is charged: all
that was delivered whole, and what a client left, or did not take, once its first token was there. What a
prefill coordinator or the site broke off is not.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog
from django.db import DatabaseError

from engine.control.errors import ChannelLost
from engine.prefill.handover import HAND_OVER_S
from engine.prefill.messages import Accepted, Done, Failed, PrefillRequest, Refused, Token
from webapp.prefill.answers import ApiError
from webapp.prefill.gateway.admission import NO_COORDINATOR_S, Admission, in_thread, settle, write_usage
from webapp.prefill.gateway.connections import CoordinatorAddress, ReplyQueue, SlowClient, connection_to
from webapp.prefill.models import Outcome
from webapp.prefill.reasons import FAILED, WHY

log = structlog.get_logger(__name__)
ADMIT_S = 5.0  # a prefill coordinator answers at once; one that does not is taken for lost
START_S = 30.0  # for the server to begin a stream, once it has been given one
GRACE_S = 30.0  # beyond the objective, for the first token
BATCH_FIRST_S = 600.0  # for the first token of a request without an objective
NEXT_S = 60.0  # between tokens
WRITE_AGAIN_S = (0.2, 1.0, 5.0)
BATCH_PRIORITY = -1
OF_THE_REQUEST = {"prompt_too_long": 413, "context_length_exceeded": 400, "invalid_prompt": 400}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstReply:
    """A coordinator has accepted the request and sent `first`, its first token or the end of the answer."""

    coordinator: CoordinatorAddress
    replies: ReplyQueue
    prompt_tokens: int
    first: Token | Done
    ttft_ms: float


class AnswerStream:
    """The tokens of a request. Use: `async for` over `tokens()`, then `close()` in any case."""

    def __init__(self, admission: Admission, first: FirstReply) -> None:
        self.admission, self._first = admission, first
        self.done: Done | None = None
        self._failure = ""
        self._closed = False
        self.on_close: Callable[[], None] = lambda: None
        # A client may leave before anybody asks for the first token.
        loop = asyncio.get_running_loop()
        self._unread = loop.call_later(START_S, self.leave)

    @property
    def prompt_tokens(self) -> int:
        return self._first.prompt_tokens

    async def tokens(self) -> AsyncIterator[Token]:
        """Tokens until all were sent. Raises ApiError where the coordinator breaks off."""
        self._unread.cancel()
        reply: Any = self._first.first
        while not isinstance(reply, Done):
            if isinstance(reply, Token):
                yield reply
            elif isinstance(reply, Failed):
                self._failure = reply.reason
                raise _failed(self.admission, reply.reason, reply.message)
            reply = await self._next()
        self.done = reply

    async def _next(self) -> Any:
        try:
            return await self._first.replies.next(NEXT_S)
        except SlowClient:
            self._failure = "slow_client"
            raise self.admission.refusal(503, "slow_client", FAILED["slow_client"]) from None
        except (ChannelLost, TimeoutError):
            self._failure = "coordinator_lost"
            raise _failed(self.admission, "coordinator_lost") from None

    async def close(self) -> None:
        """Withdraw what is not done, and write the request down; once, even where the caller is cancelled."""
        await asyncio.shield(self.leave())

    def leave(self) -> asyncio.Task[None]:
        """As `close`, for who cannot wait."""
        self._unread.cancel()
        return _keep(self._finish_once())

    async def _finish_once(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.on_close()
        if self.done is None:
            await self._first.replies.withdraw()
        else:
            self._first.replies.close()
        ours = self._failure not in ("", "slow_client")  # else the client left, or took nothing
        await _write(
            self.admission,
            tokens=self.prompt_tokens,
            outcome=Outcome.ABORTED if ours else Outcome.DELIVERED,
            reason=self._failure if ours else "",
            ttft_ms=None if ours else self._first.ttft_ms,
        )


_tasks: set[asyncio.Task[None]] = set()


def _keep(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """`work` as a task that lives until it is done, whoever waits for it."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def begin(admission: Admission) -> AnswerStream:
    """Ask the prefill coordinators one after the other; returns with the first token. Where there is none,
    the tokens of the request are given back.

    Raises
    ------
    ApiError
        No coordinator has a place, or the request is at fault. It is for the caller to `write_refusal`.
    """
    try:
        return AnswerStream(admission, await _from_any(admission))
    except ApiError as error:
        await _settle(admission, 0)
        error.drawn, error.request = admission.drawn, admission.id
        raise
    except asyncio.CancelledError:
        _keep(_left(admission))
        raise


async def write_refusal(admission: Admission, error: ApiError) -> None:
    """Write down that a request was not answered, and why."""
    outcome = Outcome.ABORTED if error.code in FAILED else Outcome.REFUSED
    await asyncio.shield(_keep(_write(admission, outcome=outcome, reason=error.code, tokens=0, ttft_ms=None)))


async def _left(admission: Admission) -> None:
    """The client left before its first token."""
    await _settle(admission, 0)
    await _write(admission, outcome=Outcome.ABORTED, reason="client_left", tokens=0, ttft_ms=None)


async def _settle(admission: Admission, tokens: int) -> None:
    """Hold `tokens` of the quota from now on; most often these are all, and no thread is needed for it."""
    if tokens != admission.held_tokens:
        await in_thread(settle, admission, tokens)


async def _from_any(admission: Admission) -> FirstReply:
    refusals: list[ApiError] = []
    for coordinator in await _soonest_first(admission, refusals):
        try:
            return await _send(admission, coordinator)
        except ApiError as error:
            if error.status not in (502, 503) or error.param is not None:  # of its receiver, which is one
                raise
            refusals.append(error)
    if not refusals:
        raise admission.refusal(
            503, "no_bubble", "No run serves prompts at the moment.", retry_after_s=NO_COORDINATOR_S
        )
    waits = [one for one in refusals if one.retry_after_s is not None]
    raise min(waits, key=lambda one: one.retry_after_s or 0.0) if waits else refusals[0]


async def _soonest_first(admission: Admission, refusals: list[ApiError]) -> list[CoordinatorAddress]:
    """The coordinators that would take the request, by the time to first token that each foretells: queue,
    prefill, and transfer of the KV cache to the decode GPU. Of equal ones the least busy.

    Those that refuse, or are not reached, leave why in `refusals`.
    """
    coordinators = sorted(admission.coordinators, key=lambda one: connection_to(one).busy)
    if len(coordinators) < 2:
        return coordinators
    quotes = await asyncio.gather(*(_quote(admission, one) for one in coordinators))
    refusals += [quote for quote in quotes if isinstance(quote, ApiError)]
    pairs = zip(quotes, coordinators, strict=True)
    foretold = [(quote, one) for quote, one in pairs if not isinstance(quote, ApiError)]
    return [one for _, one in sorted(foretold, key=lambda pair: pair[0])]


async def _quote(admission: Admission, coordinator: CoordinatorAddress) -> float | ApiError:
    """The time to first token, in ms, that a coordinator foretells, or why it would refuse."""
    request = _prefill_request(admission, coordinator, quote=True)
    try:
        replies = await connection_to(coordinator).send(request)
    except ChannelLost:
        return _failed(admission, "coordinator_lost")
    try:
        reply = await replies.next(ADMIT_S)
    except (ChannelLost, TimeoutError, SlowClient):
        return _failed(admission, "coordinator_lost")
    finally:
        replies.close()
    if isinstance(reply, Refused):
        return _refused(admission, reply)
    return reply.ttft_ms if isinstance(reply, Accepted) else _failed(admission, "coordinator_lost")


async def _send(admission: Admission, coordinator: CoordinatorAddress) -> FirstReply:
    """Send the request to `coordinator`. Raises ApiError."""
    admission.dc = coordinator.dc
    try:
        replies = await connection_to(coordinator).send(_prefill_request(admission, coordinator))
    except ChannelLost:
        raise _failed(admission, "coordinator_lost") from None
    try:
        return await _first_reply(admission, coordinator, replies)
    except BaseException:
        await asyncio.shield(replies.withdraw())
        raise


def _prefill_request(
    admission: Admission, coordinator: CoordinatorAddress, *, quote: bool = False
) -> PrefillRequest:
    objective = max(1.0, float(admission.tenancy.ttft_ms or 1) - admission.elapsed_ms)
    return PrefillRequest(
        request=f"{admission.id}/quote" if quote else admission.id,  # late replies are of nobody
        link=admission.links.get(coordinator.dc),
        quote=quote,
        longest_prompt=admission.tenancy.longest_prompt or 1,
        ttft_objective_ms=None if admission.in_batch else objective,
        priority=BATCH_PRIORITY if admission.in_batch else 0,
        **admission.call.fields,
    )


async def _first_reply(
    admission: Admission, coordinator: CoordinatorAddress, replies: ReplyQueue
) -> FirstReply:
    within_s = BATCH_FIRST_S if admission.in_batch else (admission.tenancy.ttft_ms or 0) / 1e3 + GRACE_S
    if admission.call.fields.get("decode") is not None:
        within_s += HAND_OVER_S
    try:
        reply = await replies.next(ADMIT_S)
        if isinstance(reply, Refused):
            replies.close()
            raise _refused(admission, reply)
        if not isinstance(reply, Accepted):
            raise ChannelLost("the prefill coordinator answered without accepting first")
        await _settle(admission, reply.prompt_tokens)
        first = await replies.next(within_s)
    except (ChannelLost, TimeoutError, SlowClient):
        raise _failed(admission, "coordinator_lost") from None
    if isinstance(first, Failed):
        replies.close()
        raise _failed(admission, first.reason, first.message)
    if not isinstance(first, Token | Done):
        raise _failed(admission, "coordinator_lost")
    return FirstReply(
        coordinator=coordinator,
        replies=replies,
        prompt_tokens=reply.prompt_tokens,
        first=first,
        ttft_ms=admission.elapsed_ms,
    )


def _refused(admission: Admission, refusal: Refused) -> ApiError:
    status = OF_THE_REQUEST.get(refusal.reason, 503)
    wait_s = None if refusal.retry_after_ms is None else refusal.retry_after_ms / 1e3
    text = refusal.message or WHY[refusal.reason]
    if refusal.prompt_tokens is not None and status == 413:
        length = f"The prompt has {refusal.prompt_tokens:,} tokens"
        text = f"{length}: {refusal.message}." if refusal.message else f"{text} {length}."
    return admission.refusal(
        status,
        refusal.reason,
        text,
        retry_after_s=wait_s if status == 503 else None,
        param=admission.call.field if status != 503 else None,
    )


def _failed(admission: Admission, reason: str, message: str = "") -> ApiError:
    """An accepted request was not answered, or a prefill coordinator was not reached.

    Another attempt may succeed. `message` is for who named a receiver: why it has no KV cache.
    """
    if reason == "decode" and admission.call.fields.get("decode") is not None and message:
        text = f"{message[0].upper()}{message[1:]}."
        return admission.refusal(502, reason, text, retry_after_s=1.0, param="kv_transfer_params.decode")
    status = 502 if reason in ("coordinator_lost", "decode") else 503
    return admission.refusal(status, reason, FAILED[reason], retry_after_s=1.0)


async def _write(admission: Admission, **what: Any) -> None:
    """Write usage; where the database is away, again a few times: a request that is not written is logged."""
    for wait_s in (*WRITE_AGAIN_S, None):
        try:
            await in_thread(write_usage, admission, **what)
            return
        except DatabaseError as error:
            if wait_s is None:
                log.error("usage not written", request=admission.id, error=type(error).__name__)
                return
            await asyncio.sleep(wait_s)
