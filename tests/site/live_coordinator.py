"""A coordinator in a thread of the test: real messages, the real controller over real bubbles, a tiny model.

Text is tokens by byte, modulo the vocabulary; a token's text is one character.
"""

import asyncio
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import torch

from engine.control.asyncio_driver import AsyncChannel, serve
from engine.control.coordinator_wire import COORDINATOR_RANK, FROM_GATEWAY
from engine.control.errors import ChannelLost
from engine.control.handshake import Greeting, Identity
from engine.prefill.bubbles import TrainingPattern
from engine.prefill.controller import Controller
from engine.prefill.handover import HandedOver, StageCache, transfer_params
from engine.prefill.index import Fleet
from engine.prefill.latency import LatencyModel
from engine.prefill.messages import (
    Accepted,
    Account,
    Done,
    Failed,
    PrefillRequest,
    Refused,
    Token,
    Withdraw,
    context_exceeded,
)
from engine.prefill.placement import Cache, PlacementQuery, Refusal, Settings
from engine.serve.delivered import DeliveryRecord
from engine.serve.pipeline import PrefillPipeline, PrefillResult
from tests.runtime.prefill.checkpoints import TINY, theirs
from tests.waiting import LIMIT_S
from webapp.jobs.models import Run

KV_BYTES_PER_TOKEN = 131_072.0
VOCABULARY = int(TINY["vocab_size"])  # type: ignore[call-overload]
Gateway = AsyncChannel[PrefillRequest | Withdraw | Account]
CONTEXT = int(TINY["max_position_embeddings"])  # type: ignore[call-overload]


def tokens_of(text: str) -> list[int]:
    return [byte % VOCABULARY for byte in text.encode()]


def text_of(token: int) -> str:
    return chr(32 + token)


def expected(prompt: str | list[int], tokens: int) -> str:
    """What transformers makes of a prompt, each token the likeliest."""
    ids = tokens_of(prompt) if isinstance(prompt, str) else list(prompt)
    text = ""
    for _ in range(tokens):
        ids.append(int(theirs(ids).argmax()))
        text += text_of(ids[-1])
    return text


class LiveCoordinator:
    """asked, withdrawn : ids of requests, as they came. broken : after so many tokens its lines are cut.

    endless : tokens of one letter as fast as the line takes them, as many as are asked for.
    """

    def __init__(
        self, run: Run, model: PrefillPipeline, *, rank: int = COORDINATOR_RANK, **settings: Any
    ) -> None:
        me = Identity(rank=rank, run=str(run.pk), generation=run.generation, secret=run.secret.encode())
        self._me, self._model = me, model
        pattern = TrainingPattern(
            period_ms=60.0, busy=((((0.0, 20.0),),), (((30.0, 50.0),),)), dc_of_stage=(0,)
        )
        self.controller = Controller(
            Fleet(pattern=pattern, phase_ms=(0.0,)),
            LatencyModel(a_ms=1.0, b_ms=0.05, c_ms=0.0),
            settings=Settings(**{"guard_ms": 1.0, "queue": 64, "chunk_tokens": 32, **settings}),
            cache=Cache(),
        )
        self.delivered = DeliveryRecord()
        self.asked: list[PrefillRequest] = []
        self.withdrawn: list[str] = []
        self.lines = 0
        self.broken: int | None = None
        self.endless = False
        self.fails = self.says = ""
        self._began = monotonic()
        self._work: dict[str, asyncio.Task[None]] = {}
        self._open: set[Gateway] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self._server: Any = asyncio.run_coroutine_threadsafe(
            serve(listening, me, FROM_GATEWAY, self._serve), self._loop
        ).result(LIMIT_S)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    def close_port(self) -> None:
        """Nobody listens any more; what is connected is cut."""

        async def cut() -> None:
            self._server.close()
            for line in list(self._open):
                await line.close()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(LIMIT_S)

    async def _stop(self) -> None:
        self._server.close()
        for line in list(self._open):
            await line.close()
        await asyncio.gather(*self._work.values(), return_exceptions=True)
        while len(asyncio.all_tasks()) > 1:  # lines that close
            await asyncio.sleep(0.01)

    async def _serve(self, line: Gateway, _: Greeting) -> None:
        self.lines += 1
        self._open.add(line)
        work = self._work
        mine: list[str] = []
        try:
            async for message in line.messages():
                if isinstance(message, Account):
                    for request in message.requests:
                        await line.send(self.delivered.account(request))
                    continue
                if isinstance(message, Withdraw):
                    self.withdrawn.append(message.request)
                    self.delivered.ended(message.request, "cancelled")
                    if message.request in work:
                        work.pop(message.request).cancel()
                    continue
                if not message.quote:
                    self.asked.append(message)
                mine.append(message.request)
                work[message.request] = asyncio.create_task(self._answer(line, message))
        finally:
            self._open.discard(line)
            for task in work.values():
                task.cancel()
            for request in mine:
                if self.delivered.account(request).fate == "open":
                    self.delivered.ended(request, "cancelled")

    async def _answer(self, line: Gateway, ask: PrefillRequest) -> None:
        with suppress(ChannelLost):
            await self._answered(line, ask)

    async def _answered(self, line: Gateway, ask: PrefillRequest) -> None:
        arrived = monotonic()
        ids = self._ids(ask)
        if len(ids) > ask.longest_prompt:
            await line.send(Refused(request=ask.request, reason="prompt_too_long", prompt_tokens=len(ids)))
            return
        if len(ids) + ask.max_tokens > CONTEXT and not self.endless:
            reason, text = "context_length_exceeded", context_exceeded(CONTEXT, len(ids), ask.max_tokens)
            refusal = Refused(request=ask.request, reason=reason, prompt_tokens=len(ids), message=text)
            await line.send(refusal)
            return
        now_ms = (arrived - self._began) * 1e3
        query = PlacementQuery(
            id=ask.request,
            tokens=len(ids),
            arrival_ms=now_ms,
            priority=ask.priority,
            deadline_ms=now_ms + (ask.ttft_objective_ms or math.inf),
        )
        place = self.controller.offer(query)
        if isinstance(place, Refusal):
            await line.send(
                Refused(
                    request=ask.request,
                    reason=place.reason,
                    retry_after_ms=place.retry_after_ms,
                    prompt_tokens=len(ids),
                )
            )
            return
        beyond_ms = 0.0 if ask.link is None else ask.link.ms(len(ids) * KV_BYTES_PER_TOKEN)
        accepted = Accepted(
            request=ask.request,
            prompt_tokens=len(ids),
            queue_ms=place.queue_ms,
            ttft_ms=place.ttft_ms + beyond_ms,
        )
        if ask.quote:
            self.controller.cancel(place)
            await line.send(accepted)
            return
        self.delivered.accepted(ask.request, len(ids))
        await line.send(accepted)
        await asyncio.sleep((place.kv_done_ms - now_ms) / 1e3)
        if self.fails:
            self.delivered.ended(ask.request, self.fails)  # type: ignore[arg-type]
            failed = Failed(request=ask.request, reason=self.fails, message=self.says)  # type: ignore[arg-type]
            await line.send(failed)
            return
        done = self._model.prefill(ask.request, ids, lease_s=60)
        assert isinstance(done, PrefillResult)
        self._model.abort(ask.request)
        await self._tokens(line, ask, ids, done.first_token, (monotonic() - arrived) * 1e3)

    async def _tokens(
        self, line: Gateway, ask: PrefillRequest, ids: list[int], first: int, ttft_ms: float
    ) -> None:
        prompt, token = len(ids), first
        for number in range(ask.max_tokens):
            await line.send(
                Token(
                    request=ask.request,
                    token=token,
                    text="x" * 20_000 if self.endless else text_of(token),
                    ttft_ms=None if number else ttft_ms,
                )
            )
            self.delivered.token(ask.request, ttft_ms)
            await asyncio.sleep(0)
            if self.broken is not None and number + 1 >= self.broken:
                await line.close()
                return
            if ask.request in self.withdrawn:
                return
            ids.append(token)
            if number + 1 < ask.max_tokens and not self.endless:
                token = int(theirs(ids).argmax())
        params = None
        handed_over = None
        if ask.decode is not None:
            handed_over = HandedOver(
                remote_request_id=ask.decode.request, remote_tokens=prompt, stages=1, next_token=first
            )
        elif ask.hand_over:
            stage = StageCache(rank=0, host="10.0.0.1", port=5_000, block_ids=(1, 2), first_layer=0, layers=4)
            params = transfer_params(engine_id="e", request=ask.request, tokens=prompt, stages=[stage])
        self.delivered.ended(ask.request, "done", ttft_ms)
        await line.send(
            Done(
                request=ask.request,
                finish="length",
                prompt_tokens=prompt,
                completion_tokens=ask.max_tokens,
                ttft_ms=ttft_ms,
                kv_transfer_params=params,
                handed_over=handed_over,
            )
        )

    def _ids(self, ask: PrefillRequest) -> list[int]:
        if ask.turns is not None:
            return tokens_of("".join(f"<{turn.role}>{turn.content}" for turn in ask.turns))
        return tokens_of(ask.prompt) if isinstance(ask.prompt, str) else list(ask.prompt or ())


@contextmanager
def live_coordinator(run: Run, model: PrefillPipeline, **settings: Any) -> Iterator[LiveCoordinator]:
    """A coordinator that is open, until the block ends."""
    torch.set_num_threads(1)
    coordinator = LiveCoordinator(run, model, **settings)
    try:
        yield coordinator
    finally:
        coordinator.close()
