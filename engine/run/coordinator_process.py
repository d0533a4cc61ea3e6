"""The prefill coordinator's process: one for the GPUs of a run in one data centre,
forked by the host of the first of them.

It listens for the ranks there, which tell it when they train, and for gateways, which bring prompts
(engine.prefill.messages); `PrefillCoordinator` decides. One that dies takes its connections with it: by that
gateways know that their requests are lost, ranks drop what they held, and the host starts another one.
"""

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.control.asyncio_driver import AsyncChannel, serve
from engine.control.channel import LONGEST_LINE
from engine.control.coordinator_wire import COORDINATOR_RANK, FROM_GATEWAY, Question
from engine.control.errors import TransportError
from engine.control.handshake import Greeting, Identity
from engine.control.identity import identity_of
from engine.control.listening import listen
from engine.documents import read_json_file
from engine.inputs import Document
from engine.job.events.base import BaseEvent
from engine.job.events.prefill import CoordinatorEvent, CoordinatorState
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.prefill.config import read_config
from engine.prefill.messages import Account, PrefillRequest
from engine.schedule import Schedule
from engine.serve.coordinator import PrefillCoordinator
from engine.serve.coordinator_connection import address_key
from engine.serve.coordinator_plan import CoordinatorPlan, TrainingGpus
from engine.serve.decoding import can_decode, fork_decoder
from engine.serve.prefill_progress import Model, ends_of
from engine.serve.prefill_wire import FROM_PREFILL_WORKER, FromPrefillWorker
from engine.serve.served import cache_shape
from engine.serve.tokenizing import tokenizer_of
from engine.serve.weights import DTYPES
from engine.serve.yielding import yield_wakeups
from engine.train.mesh import open_store

SAY_EVERY_S = 1.0
GENERATION = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStart:
    """What a coordinator serves: the GPUs of one data centre in one generation of a run's ranks.

    first : the first of them, at whose address the coordinator listens.  port : of the rendezvous store.
    """

    spec: LaunchSpec
    schedule: Schedule
    first: RankAssignment
    port: int

    @property
    def identity(self) -> Identity:
        """The coordinator as its peers know it."""
        return identity_of(self.spec, COORDINATOR_RANK + self.first.dc)


def run(start: CoordinatorStart, *, events_fd: int, life_fd: int) -> None:
    """Run a coordinator to its end. It writes events to one pipe, and ends when the other pipe closes."""
    settings = start.spec.job.prefill
    assert settings is not None
    yield_wakeups()  # and its decoder's
    decoder = None
    if can_decode():
        me = start.identity
        worker = Identity(rank=me.rank, run=me.run, generation=me.generation, secret=me.secret)
        decoder = fork_decoder(Path(settings.checkpoint), worker, dtype=settings.dtype)
    store = open_store(start.spec, start.port, start.identity.rank)
    asyncio.run(_Process(start, decoder[1] if decoder else None, store, events_fd).run(life_fd))


class _Process:
    def __init__(
        self, start: CoordinatorStart, decoder: socket.socket | None, store: Any, events_fd: int
    ) -> None:
        self._events_fd = events_fd
        assert start.spec.job.prefill is not None
        self._start, self._settings, self._store = start, start.spec.job.prefill, store
        self._gpus = TrainingGpus.of(start.spec, start.schedule, start.first.dc)
        config = read_config(Path(self._settings.checkpoint))
        self._decoder = _DecoderLine(decoder, self._wake) if decoder else None
        spec, folder = start.spec, Path(self._settings.checkpoint)
        model = Model(
            tokenizer=tokenizer_of(folder, vocab=config.vocab_size),
            vocabulary=config.vocab_size,
            context=config.max_position_embeddings,
            ends=_ends(folder),
            engine_id=f"{spec.run}/{spec.generation}/{start.first.dc_name}",
        )
        self._origin = time.monotonic()
        plan = CoordinatorPlan(
            self._gpus,
            self._settings,
            cache_shape(config, self._settings),
            layers=config.num_hidden_layers,
            token_bytes=config.hidden_size * DTYPES[self._settings.dtype].itemsize,
        )
        self._service = PrefillCoordinator(
            plan, model, decoder=self._decoder, now_ms=self._now_ms, origin_s=self._origin
        )
        self._woken = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._address = (start.first.host, 0)
        self._open = False

    async def run(self, life_fd: int) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._closing.set)
        loop.add_reader(life_fd, functools.partial(os._exit, 1))
        me, host = self._start.identity, self._start.first.host
        ports, number = self._start.spec.ports, self._start.first.rank
        for_ranks, for_gateways = (listen(host, ports, number) for _ in range(2))
        await serve(for_ranks, me, FROM_PREFILL_WORKER, self._rank)
        await serve(for_gateways, me, FROM_GATEWAY, self._gateway)
        self._address = for_gateways.getsockname()[:2]
        if self._decoder:
            self._task(self._decoded(self._decoder))
        self._store.set(address_key(self._start.first.dc), json.dumps(for_ranks.getsockname()[:2]))
        turning, saying = self._task(self._turn()), self._task(self._say_counts())
        await self._closing.wait()
        for task in (turning, saying):
            task.cancel()
        self._service.stop()
        await asyncio.sleep(0.05)  # what was just said goes out
        if self._open:
            self._say_state(CoordinatorState.CLOSED, "training stopped")
        os._exit(0)  # connections and the decoder end with the process

    async def _rank(self, rank: AsyncChannel[FromPrefillWorker], greeting: Greeting) -> None:
        if greeting.rank not in self._gpus.ranks:
            return
        gpu = self._gpus.ranks.index(greeting.rank)
        self._service.attach(gpu, rank)
        try:
            async for message in rank.messages():
                self._service.handle(gpu, message)
                self._wake()
        finally:
            self._service.detach(gpu, rank)
            self._wake()

    async def _gateway(self, gateway: AsyncChannel[Question], _: Greeting) -> None:
        try:
            async for message in gateway.messages():
                if isinstance(message, PrefillRequest):
                    self._service.submit(gateway, message)
                elif isinstance(message, Account):
                    self._service.account(gateway, message.requests)
                else:
                    self._service.withdraw(gateway, message.request)
                self._wake()
        finally:
            self._service.gateway_lost(gateway)

    async def _decoded(self, decoder: "_DecoderLine") -> None:
        async for message in decoder.messages():
            self._service.handle_decoder(message)
        self._service.decoder_lost()
        if not self._closing.is_set():  # it cannot be forked again from here: the host starts both again
            os._exit(1)

    async def _turn(self) -> None:
        while True:
            left_s = self._service.turn()
            if (
                not self._open
                and self._service.plan.knows
                and self._service.attached == len(self._gpus.ranks)
            ):
                self._open = True
                self._say_state(CoordinatorState.OPEN, f"tokenizer: {self._service.model.tokenizer.kind}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), left_s)
            self._woken.clear()

    async def _say_counts(self) -> None:
        while True:
            await asyncio.sleep(SAY_EVERY_S)
            if self._open:
                service, slowdown = self._service, self._service.plan.slowdown
                self._emit(
                    service.counts.event(
                        self._start.first.dc_name,
                        waiting=service.waiting,
                        gpus=len(self._gpus.ranks),
                        guard_ms=max(service.plan.guards_ms),
                        slowdown=slowdown.share,
                        paused=slowdown.paused,
                    )
                )

    def _say_state(self, state: CoordinatorState, detail: str) -> None:
        host, port = self._address
        self._emit(state_event(self._start, state, detail, host, port))

    def _emit(self, event: BaseEvent) -> None:
        os.write(self._events_fd, event.to_json() + b"\n")

    def _now_ms(self) -> float:
        return (time.monotonic() - self._origin) * 1e3

    def _wake(self) -> None:
        self._woken.set()

    def _task(self, work: Any) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, TransportError | OSError):
                return
            print(f"the prefill coordinator failed: {where(error)}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(1)


class _DecoderLine:
    """The decoder's socket, in the coordinator's event loop."""

    def __init__(self, connected: socket.socket, wake: Callable[[], None]) -> None:
        self._socket, self._wake = connected, wake
        self._writer: asyncio.StreamWriter | None = None

    async def messages(self) -> Any:
        """What it says, until it ends."""
        self._socket.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=LONGEST_LINE)
        while (line := await reader.readline()).endswith(b"\n"):
            yield json.loads(line)
            self._wake()

    def start(self, request: str, params: Document, token: int, *, most: int, sampling: Document) -> None:
        self._send(
            {
                "decode": request,
                "params": params.model_dump(mode="json"),
                "token": token,
                "most": most,
                "sampling": sampling.model_dump(mode="json"),
            }
        )

    def stop(self, request: str) -> None:
        self._send({"stop": request})

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")


def state_event(
    start: CoordinatorStart, state: CoordinatorState, detail: str, host: str, port: int
) -> CoordinatorEvent:
    """The event that the coordinator is open or closed."""
    assert start.spec.job.prefill is not None
    return CoordinatorEvent(
        dc=start.first.dc_name,
        model=start.spec.job.prefill.model,
        host=host,
        port=port,
        rank=COORDINATOR_RANK + start.first.dc,
        state=state,
        detail=detail,
        t=time.time(),
    )


def where(error: BaseException) -> str:
    """What went wrong and where, without what was said: messages of errors could quote a prompt."""
    trace, places = error.__traceback__, []
    while trace is not None:
        places.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(error).__name__} at {' '.join(places[-4:])}"


def _ends(folder: Path) -> frozenset[int]:
    for name in (GENERATION, "config.json"):
        with contextlib.suppress(OSError, ValueError):
            with (folder / name).open("rb") as file:
                document = read_json_file(file)
            if isinstance(document, dict) and "eos_token_id" in document:
                return ends_of(document["eos_token_id"])
    return frozenset()
