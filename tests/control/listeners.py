"""Every listener that begins with the proof of the secret, in this process, with members that join it."""

import asyncio
import selectors
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from engine.control import recovery_lead, selector_driver
from engine.control.asyncio_driver import AsyncChannel, serve
from engine.control.coordinator_wire import COORDINATOR_RANK, FROM_COORDINATOR, FROM_GATEWAY, GATEWAY_RANK
from engine.control.handshake import Greeting, Handshake, Identity, dial
from engine.control.identity import identity_of
from engine.control.messages import Messages
from engine.control.recovery_host import Ranks
from engine.control.recovery_lead import Lead
from engine.control.recovery_messages import FROM_LEADER, Halted, Welcome
from engine.control.recovery_messages import LISTENERS as RECOVERY
from engine.control.recovery_messages import Hello as RecoveryHello
from engine.control.rendezvous import FROM_STORE, Add, StoreServer
from engine.control.thread_driver import BlockingChannel
from engine.inputs import Document
from engine.job.launch import LOCALHOST, single_machine
from engine.job.recovery.attempt import Attempt
from engine.job.recovery.history import History
from engine.job.recovery.reserve import SharedReserve
from engine.prefill.messages import Accepted, Account, PrefillRequest, Withdraw
from engine.serve.hidden_states import HiddenHeader, HiddenReceiver, HiddenShape
from engine.serve.kv_pool import KvPool, KvShape
from engine.serve.kv_server import KvServer
from engine.serve.kv_wire import KvTransferError, receive_frame, send_frame
from engine.train.swap import replica as replica_module
from engine.train.swap.messages import FROM_TRACKER, Address, Hello, Voted
from engine.train.swap.messages import LISTENERS as SWAP
from engine.train.swap.replica import Replica
from tests.runtime.jobs import job
from tests.runtime.swap_jobs import job as swap_job
from tests.waiting import LIMIT_S
from workers import probe as node_probe
from workers.probe import FROM_LISTENER, LISTENER, Question, Time
from workers.probe import Listener as ProbeListener

ME = Identity(rank=0, run="run", generation=1, secret=b"s" * 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A listener.

    members : identities that may join it, as the listener at `port`, which has rank `peer`, knows them.
    join : holds the handshake and says what a member says first. works : fails where a member that joined is
    not served any more. early : a message that is none to begin with.
    lines : whether what follows the handshake is JSON lines.
    """

    port: int
    members: tuple[Identity, ...]
    peer: int
    join: Callable[[Identity], Any]
    works: Callable[[Any], None]
    failed: Callable[[], BaseException | None] = lambda: None
    early: Document | None = None
    lines: bool = True

    def connected(self) -> socket.socket:
        """A connection of which nothing is known yet."""
        return socket.create_connection((LOCALHOST, self.port), timeout=LIMIT_S)


class Loop:
    """A host's loop: its selector, and the tick of what lives in it."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.failure: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._tick: Callable[[], None] = lambda: None

    def start(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                for key, _ in self.selector.select(0.02):
                    key.data()
                self._tick()
        except BaseException as error:
            self.failure = error


class NoRanks(Ranks):
    """The leading host's machine: nothing runs there yet."""

    def begin(self, attempt: Attempt, store: socket.socket | None) -> None: ...
    def kill(self) -> None: ...
    def gone(self) -> bool:
        return True

    def peer_lost(self) -> list[Any]:
        return []

    def held(self) -> dict[int, tuple[int, ...]]:
        return {}

    def give_up(self, why: str) -> None: ...
    def leave(self, why: str) -> None: ...


def _join(port: int, peer: int, says: Messages[Any], hello: Callable[[int], Document] | None) -> Any:
    def join(me: Identity) -> BlockingChannel[Any]:
        connected = socket.create_connection((LOCALHOST, port), timeout=LIMIT_S)
        channel = BlockingChannel(connected, Handshake(dial(me, peer=peer)), says, seconds=LIMIT_S)
        if hello is not None:
            channel.send(hello(me.rank))
        return channel

    return join


def _beats(channel: BlockingChannel[Any]) -> None:
    """It is still heard from: beats come, behind what had come before."""
    connected = channel._socket
    connected.setblocking(False)
    try:
        while True:
            assert connected.recv(1 << 16), "it was cut off"
    except BlockingIOError:
        connected.settimeout(LIMIT_S)
    assert connected.recv(1 << 16)


@contextmanager
def recovery(keep: ExitStack) -> Iterator[Target]:
    keep.enter_context(patch.object(selector_driver, "BEAT_S", 0.05))
    keep.enter_context(patch.object(recovery_lead, "SILENT_S", LIMIT_S))
    of = job(recovery={})
    spec = single_machine(of, run="run", log_dir="")
    assert of.failures.recovery is not None
    loop, listening = Loop(), socket.create_server((LOCALHOST, 0))
    here = replace(spec, local=(0,))
    lead = Lead(
        here,
        of.failures.recovery,
        NoRanks(),
        loop.selector,
        history=History(),
        emit=lambda _: None,
        listener=listening,
        reserve=SharedReserve(),
    )
    port = listening.getsockname()[1]
    loop.start(lead.tick)
    keep.callback(loop.selector.close)
    keep.callback(lead.close)
    keep.callback(loop.stop)

    def hello(rank: int) -> Document:
        return RecoveryHello(ranks=(rank,), held={}, attempt=0, lost_at=0.0)

    greets = _join(port, 0, FROM_LEADER, hello)

    def join(me: Identity) -> Any:
        channel = greets(me)
        assert next(channel.messages()) == Welcome()
        return channel

    yield Target(
        port=port,
        members=tuple(identity_of(spec, rank, RECOVERY) for rank in (1, 2, 3)),
        peer=0,
        join=join,
        works=_beats,
        failed=lambda: loop.failure,
        early=Halted(peer_lost=(), held={}, attempt=0, lost_at=0.0),
    )


@contextmanager
def swap(keep: ExitStack) -> Iterator[Target]:
    keep.enter_context(patch.object(selector_driver, "BEAT_S", 0.05))
    keep.enter_context(patch.object(replica_module, "SILENT_S", LIMIT_S))
    spec = single_machine(swap_job(pipelines=4), run="run", log_dir="")
    loop, listening = Loop(), socket.create_server((LOCALHOST, 0))
    tracker = Replica(
        spec,
        0,
        listening,
        loop.selector,
        emit=lambda _: None,
        start=lambda _: None,
        stop_flag=b"\0",
        tokens_per_byte=lambda _: 1.0,
    )
    port = listening.getsockname()[1]
    loop.start(tracker.tick)
    keep.callback(loop.selector.close)
    keep.callback(tracker.close)
    keep.callback(loop.stop)
    yield Target(
        port=port,
        members=tuple(identity_of(spec, rank, SWAP) for rank in (0, 1, 2)),
        peer=0,
        join=_join(port, 0, FROM_TRACKER, lambda _: Hello(step=0, address=Address(store=1))),
        works=_beats,
        failed=lambda: loop.failure,
        early=Voted(epoch=1),
    )


@contextmanager
def coordinator(keep: ExitStack) -> Iterator[Target]:
    loop, listening = asyncio.new_event_loop(), socket.create_server((LOCALHOST, 0))
    port = listening.getsockname()[1]
    me = Identity(rank=COORDINATOR_RANK, run="run", generation=1, secret=ME.secret)

    async def attend(gateway: AsyncChannel[PrefillRequest | Withdraw | Account], _: Greeting) -> None:
        async for ask in gateway.messages():
            gateway.post(Accepted(request=ask.request, prompt_tokens=1, queue_ms=0, ttft_ms=1))

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(LIMIT_S)  # type: ignore[arg-type]

    server = run(serve(listening, me, FROM_GATEWAY, attend))

    async def end() -> None:
        server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def stop() -> None:
        run(end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    keep.callback(stop)

    def works(channel: BlockingChannel[Any]) -> None:
        channel.send(PrefillRequest(request="r", prompt="p", longest_prompt=9))
        assert isinstance(next(channel.messages()), Accepted)

    member = Identity(rank=GATEWAY_RANK, run="run", generation=1, secret=ME.secret)
    yield Target(
        port=port,
        members=(member,) * 3,
        peer=COORDINATOR_RANK,
        join=_join(port, COORDINATOR_RANK, FROM_COORDINATOR, None),
        works=works,
    )


@contextmanager
def probe(keep: ExitStack) -> Iterator[Target]:
    for limit in ("LONGEST_LISTEN_S", "CONNECT_S"):
        keep.enter_context(patch.object(node_probe, limit, LIMIT_S))
    listener = ProbeListener(LOCALHOST, 0, ME.secret, LIMIT_S)
    keep.callback(listener.close)
    me = Identity(rank=1, run="probe", generation=0, secret=ME.secret)

    def works(channel: BlockingChannel[Any]) -> None:
        channel.send(Question())
        assert isinstance(next(channel.messages()), Time)

    yield Target(
        port=listener.port,
        members=(me,) * 3,
        peer=LISTENER,
        join=_join(listener.port, LISTENER, FROM_LISTENER, None),
        works=works,
    )


@contextmanager
def rendezvous(keep: ExitStack) -> Iterator[Target]:
    server = StoreServer(socket.create_server((LOCALHOST, 0)), ME)
    keep.callback(server.close)

    def works(channel: BlockingChannel[Any]) -> None:
        channel.send(Add(key="number", amount=1))
        assert next(channel.messages()).number > 0

    yield Target(
        port=server.port,
        members=(replace(ME, rank=1),) * 3,
        peer=0,
        join=_join(server.port, 0, FROM_STORE, None),
        works=works,
    )


def _socket(port: int, peer: int) -> Callable[[Identity], Any]:
    join = _join(port, peer, FROM_COORDINATOR, None)
    return lambda me: join(me)._socket


@contextmanager
def caches(keep: ExitStack) -> Iterator[Target]:
    shape = KvShape(first_layer=0, layers=2, kv_heads=2, head_size=8, dtype="bf16", block_tokens=16)
    pool = KvPool(shape, budget_bytes=4 * shape.block_bytes)
    server = KvServer(pool, ME, host=LOCALHOST, patience_s=LIMIT_S)
    keep.callback(server.close)

    def works(connected: socket.socket) -> None:
        send_frame(connected, {"fetch": "r", "blocks": []})
        with pytest.raises(KvTransferError, match="no such cache"):
            receive_frame(connected)

    member = Identity(rank=9, run="run", generation=1, secret=ME.secret)
    yield Target(
        port=server.port,
        members=(member,) * 3,
        peer=0,
        join=_socket(server.port, 0),
        works=works,
        lines=False,
    )


@contextmanager
def hidden_states(keep: ExitStack) -> Iterator[Target]:
    came = threading.Semaphore(0)

    class HiddenSink:
        def arrived(self, what: HiddenHeader, hidden: torch.Tensor) -> None:
            came.release()

    shape = HiddenShape(size=4, dtype=torch.float32, context=64)
    server = HiddenReceiver(ME, shape, HiddenSink(), before=1, host=LOCALHOST)
    keep.callback(server.close)

    def works(connected: socket.socket) -> None:
        send_frame(connected, HiddenHeader(request="r", done=0, tokens=3, lease_s=1.0).model_dump())
        send_frame(connected, {}, bytes(3 * 4 * 4))
        assert came.acquire(timeout=LIMIT_S)

    member = Identity(rank=1, run="run", generation=1, secret=ME.secret)
    port = server.address[1]
    yield Target(port=port, members=(member,) * 3, peer=0, join=_socket(port, 0), works=works, lines=False)


ALL = {
    "recovery": recovery,
    "swap": swap,
    "prefill coordinator": coordinator,
    "probe": probe,
    "rendezvous store": rendezvous,
    "KV caches": caches,
    "hidden states": hidden_states,
}


def until_closed(connected: socket.socket) -> bytes:
    """What comes until the other side closes."""
    came = b""
    deadline = time.monotonic() + LIMIT_S
    try:
        while data := connected.recv(1 << 16):
            came += data
            assert time.monotonic() < deadline, "it was not closed"
    except ConnectionError:
        pass
    return came
