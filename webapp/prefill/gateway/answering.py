"""One request, from the coordinators' answer to its end: its coordinator, tokens and record.

The answer begins with the first token: whatever goes wrong before has its HTTP status. What is charged: all
that was delivered whole, and what a client left, or did not take, once its first token was there. What a
prefill coordinator or the site broke off is not.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog
from django.db import DatabaseError

from engine.control.errors import ChannelLost
from engine.prefill.messages import Accepted, Done, Failed, PrefillRequest, Refused, Token
from webapp.prefill.answers import ApiError
from webapp.prefill.gateway.lines import CoordinatorAddress, Exchange, SlowClient, line_to
from webapp.prefill.gateway.selling import NO_COORDINATOR_S, Sale, in_thread, settle, write_usage
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
class Taken:
    """A coordinator has accepted the request and sent its first message."""

    coordinator: CoordinatorAddress
    exchange: Exchange
    prompt_tokens: int
    first: Token | Done
    ttft_ms: float


class Answering:
    """A request whose first token is there. Use: `async for` over `tokens()`, then `close()` in any case."""

    def __init__(self, sale: Sale, taken: Taken) -> None:
        self.sale, self._taken = sale, taken
        self.done: Done | None = None
        self._failure = ""
        self._closed = False
        # A client may leave before anybody asks for the first token.
        loop = asyncio.get_running_loop()
        self._unread = loop.call_later(START_S, self.leave)

    @property
    def prompt_tokens(self) -> int:
        return self._taken.prompt_tokens

    async def tokens(self) -> AsyncIterator[Token]:
        """Tokens until all were sent. Raises ApiError where the coordinator breaks off."""
        self._unread.cancel()
        said: Any = self._taken.first
        while not isinstance(said, Done):
            if isinstance(said, Token):
                yield said
            elif isinstance(said, Failed):
                self._failure = said.reason
                raise _failed(self.sale, said.reason)
            said = await self._next()
        self.done = said

    async def _next(self) -> Any:
        try:
            return await self._taken.exchange.next(NEXT_S)
        except SlowClient:
            self._failure = "slow_client"
            raise self.sale.refusal(503, "slow_client", FAILED["slow_client"]) from None
        except (ChannelLost, TimeoutError):
            self._failure = "coordinator_lost"
            raise _failed(self.sale, "coordinator_lost") from None

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
        if self.done is None:
            await self._taken.exchange.withdraw()
        else:
            self._taken.exchange.close()
        ours = self._failure not in ("", "slow_client")  # else the client left, or took nothing
        await _write(
            self.sale,
            tokens=self.prompt_tokens,
            outcome=Outcome.ABORTED if ours else Outcome.DELIVERED,
            reason=self._failure if ours else "",
            ttft_ms=None if ours else self._taken.ttft_ms,
        )


_tasks: set[asyncio.Task[None]] = set()


def _keep(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """`work` as a task that lives until it is done, whoever waits for it."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def begin(sale: Sale) -> Answering:
    """Ask the prefill coordinators one after the other; returns with the first token. Where there is none,
    the tokens of the request are given back.

    Raises
    ------
    ApiError
        No coordinator has a place, or the request is at fault. It is for the caller to `write_refusal`.
    """
    try:
        return Answering(sale, await _first(sale))
    except ApiError as error:
        await _settle(sale, 0)
        error.drawn, error.request = sale.drawn, sale.id
        raise
    except asyncio.CancelledError:
        _keep(_left(sale))
        raise


async def write_refusal(sale: Sale, error: ApiError) -> None:
    """Write down that a request was not answered, and why."""
    outcome = Outcome.ABORTED if error.code in FAILED else Outcome.REFUSED
    await asyncio.shield(_keep(_write(sale, outcome=outcome, reason=error.code, tokens=0, ttft_ms=None)))


async def _left(sale: Sale) -> None:
    """The client left before its first token."""
    await _settle(sale, 0)
    await _write(sale, outcome=Outcome.ABORTED, reason="client_left", tokens=0, ttft_ms=None)


async def _settle(sale: Sale, tokens: int) -> None:
    """Keep `tokens` of those that were taken; most often these are all, and no thread is needed for it."""
    if tokens != sale.taken:
        await in_thread(settle, sale, tokens)


async def _first(sale: Sale) -> Taken:
    refusals: list[ApiError] = []
    tried: set[int] = set()
    while untried := [
        coordinator for coordinator in sale.coordinators if coordinator.coordinator not in tried
    ]:
        coordinator = min(untried, key=lambda one: line_to(one).busy)
        tried.add(coordinator.coordinator)
        try:
            return await _ask(sale, coordinator)
        except ApiError as error:
            if error.status not in (502, 503):
                raise
            refusals.append(error)
    if not refusals:
        raise sale.refusal(
            503, "no_bubble", "No run serves prompts at the moment.", retry_after_s=NO_COORDINATOR_S
        )
    waits = [one for one in refusals if one.retry_after_s is not None]
    raise min(waits, key=lambda one: one.retry_after_s or 0.0) if waits else refusals[0]


async def _ask(sale: Sale, coordinator: CoordinatorAddress) -> Taken:
    """Hand the request in at `coordinator`. Raises ApiError."""
    sale.dc = coordinator.dc
    try:
        exchange = await line_to(coordinator).ask(_message(sale))
    except ChannelLost:
        raise _failed(sale, "coordinator_lost") from None
    try:
        return await _taken(sale, coordinator, exchange)
    except BaseException:
        await asyncio.shield(exchange.withdraw())
        raise


def _message(sale: Sale) -> PrefillRequest:
    objective = max(1.0, float(sale.tenancy.ttft_ms or 1) - sale.elapsed_ms)
    return PrefillRequest(
        request=sale.id,
        longest_prompt=sale.tenancy.longest_prompt or 1,
        ttft_objective_ms=None if sale.in_batch else objective,
        priority=BATCH_PRIORITY if sale.in_batch else 0,
        **sale.asked.what,
    )


async def _taken(sale: Sale, coordinator: CoordinatorAddress, exchange: Exchange) -> Taken:
    within_s = BATCH_FIRST_S if sale.in_batch else (sale.tenancy.ttft_ms or 0) / 1e3 + GRACE_S
    try:
        said = await exchange.next(ADMIT_S)
        if isinstance(said, Refused):
            exchange.close()
            raise _refused(sale, said)
        if not isinstance(said, Accepted):
            raise ChannelLost("the prefill coordinator answered without accepting first")
        await _settle(sale, said.prompt_tokens)
        first = await exchange.next(within_s)
    except (ChannelLost, TimeoutError, SlowClient):
        raise _failed(sale, "coordinator_lost") from None
    if isinstance(first, Failed):
        exchange.close()
        raise _failed(sale, first.reason)
    if not isinstance(first, Token | Done):
        raise _failed(sale, "coordinator_lost")
    return Taken(
        coordinator=coordinator,
        exchange=exchange,
        prompt_tokens=said.prompt_tokens,
        first=first,
        ttft_ms=sale.elapsed_ms,
    )


def _refused(sale: Sale, said: Refused) -> ApiError:
    status = OF_THE_REQUEST.get(said.reason, 503)
    wait_s = None if said.retry_after_ms is None else said.retry_after_ms / 1e3
    text = said.message or WHY[said.reason]
    if said.prompt_tokens is not None and status == 413:
        counted = f"The prompt has {said.prompt_tokens:,} tokens"
        text = f"{counted}: {said.message}." if said.message else f"{text} {counted}."
    return sale.refusal(
        status,
        said.reason,
        text,
        retry_after_s=wait_s if status == 503 else None,
        param=sale.asked.field if status != 503 else None,
    )


def _failed(sale: Sale, reason: str) -> ApiError:
    """An accepted request was not answered, or a prefill coordinator was not reached.

    Another attempt may succeed.
    """
    status = 502 if reason in ("coordinator_lost", "decode") else 503
    return sale.refusal(status, reason, FAILED[reason], retry_after_s=1.0)


async def _write(sale: Sale, **what: Any) -> None:
    """Write usage; where the database is away, again a few times: a request that is not written is logged."""
    for wait_s in (*WRITE_AGAIN_S, None):
        try:
            await in_thread(write_usage, sale, **what)
            return
        except DatabaseError as error:
            if wait_s is None:
                log.error("usage not written", request=sale.id, error=type(error).__name__)
                return
            await asyncio.sleep(wait_s)
