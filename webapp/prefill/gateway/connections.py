"""Connections to prefill coordinators: one per coordinator, event loop and process, with many requests.

What a prefill coordinator says is handed to the request that it names and never waits for a client: each
request holds a bounded number of messages, and one whose client does not take them is withdrawn.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import structlog

from engine.control.asyncio_driver import AsyncChannel, call
from engine.control.coordinator_wire import FROM_COORDINATOR, GATEWAY_RANK, Answer
from engine.control.errors import ChannelLost
from engine.control.handshake import Identity
from engine.prefill.messages import PrefillRequest, Withdraw

log = structlog.get_logger(__name__)
MOST_HELD = 512  # messages of a request that its client has not taken
SEND_S = 5.0
CONNECT_S = 5.0
CONNECT_AGAIN_S = 0.5  # a prefill coordinator that could not be reached is not tried again sooner


class SlowClient(Exception):
    """The client took its tokens so slowly that MOST_HELD of them wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAddress:
    """An open prefill coordinator.

    run, generation, secret : by which it and the site know each other.
    """

    coordinator: int
    run: str
    generation: int
    secret: str = field(repr=False)
    dc: int
    dc_name: str
    model: str
    host: str
    port: int
    rank: int

    async def call(self, seconds: float) -> AsyncChannel[Answer]:
        """A channel to it, made within `seconds`. Raises OSError."""
        me = Identity(
            rank=GATEWAY_RANK, run=self.run, generation=self.generation, secret=self.secret.encode()
        )
        return await call(self.host, self.port, me, self.rank, FROM_COORDINATOR, seconds=seconds)


class ReplyQueue:
    """The coordinator's replies to one request that its client has not taken."""

    def __init__(self, connection: "GatewayConnection", request: str) -> None:
        self.request = request
        self._connection = connection
        self._held: deque[Answer] = deque()
        self._news = asyncio.Event()
        self._end: Exception | None = None

    def take(self, answer: Answer) -> None:
        """Add a reply of the coordinator."""
        if self._end is not None:
            return
        if len(self._held) >= MOST_HELD:
            self.end(SlowClient())
            self._connection.withdraw_later(self.request)
            return
        self._held.append(answer)
        self._news.set()

    def end(self, why: Exception) -> None:
        """Nothing more will come."""
        self._end = self._end or why
        self._news.set()

    async def next(self, within_s: float) -> Answer:
        """The next reply. Raises ChannelLost, SlowClient, TimeoutError."""
        async with asyncio.timeout(within_s):
            while not self._held:
                if self._end is not None:
                    raise self._end
                self._news.clear()
                await self._news.wait()
        return self._held.popleft()

    async def withdraw(self) -> None:
        """The request is of no use any more."""
        self._connection.forget(self.request)
        await self._connection.withdraw(self.request)

    def close(self) -> None:
        """Expect no further replies."""
        self._connection.forget(self.request)


class GatewayConnection:
    """The gateway's connection to one coordinator, made at first use and again after it was lost."""

    def __init__(self, address: CoordinatorAddress) -> None:
        self.address = address
        self._channel: AsyncChannel[Answer] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._replies: dict[str, ReplyQueue] = {}
        self._failed_at = float("-inf")

    @property
    def busy(self) -> int:
        """Requests that are on it."""
        return len(self._replies)

    async def send(self, request: PrefillRequest) -> ReplyQueue:
        """Send a request. Raises ChannelLost: the coordinator cannot be reached."""
        channel = await self._connected()
        replies = self._replies[request.request] = ReplyQueue(self, request.request)
        try:
            async with asyncio.timeout(SEND_S):
                await channel.send(request)
        except TimeoutError:
            self._lost(channel, ChannelLost("the prefill coordinator does not read what is sent"))
            raise ChannelLost("the prefill coordinator does not read what is sent") from None
        except BaseException:
            self.forget(request.request)
            raise
        return replies

    async def withdraw(self, request: str) -> None:
        """Tell the coordinator that nobody wants the answer any more; a lost channel says so itself."""
        if self._channel is None:
            return
        try:
            async with asyncio.timeout(SEND_S):
                await self._channel.send(Withdraw(request=request))
        except (ChannelLost, TimeoutError):
            pass

    def withdraw_later(self, request: str) -> None:
        _in_background(self.withdraw(request))

    def forget(self, request: str) -> None:
        self._replies.pop(request, None)

    async def close(self) -> None:
        """End the connection; what is on it is lost."""
        channel, reader = self._channel, self._reader
        if channel is None:
            return
        self._lost(channel, ChannelLost("the connection was closed"))
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        await channel.close()

    async def _connected(self) -> AsyncChannel[Answer]:
        async with self._connecting:
            if self._channel is None:
                self._channel = await self._connect()
                self._reader = asyncio.create_task(self._read(self._channel))
            return self._channel

    async def _connect(self) -> AsyncChannel[Answer]:
        to, loop = self.address, asyncio.get_running_loop()
        if loop.time() - self._failed_at < CONNECT_AGAIN_S:
            raise ChannelLost("the prefill coordinator could not be reached a moment ago")
        try:
            return await to.call(CONNECT_S)
        except OSError as error:
            self._failed_at = loop.time()
            log.warning(
                "prefill coordinator not reached", run=to.run, dc=to.dc_name, error=str(error) or "no answer"
            )
            raise ChannelLost("the prefill coordinator could not be reached") from error

    async def _read(self, channel: AsyncChannel[Answer]) -> None:
        why = ChannelLost("the prefill coordinator closed the connection")
        try:
            async for answer in channel.messages():
                replies = self._replies.get(answer.request)
                if replies is not None:
                    replies.take(answer)
        except ChannelLost as error:
            why = error
        finally:
            self._lost(channel, why)
            await channel.close()

    def _lost(self, channel: AsyncChannel[Answer], why: ChannelLost) -> None:
        """Everything on `channel` ends; the next request makes a new one."""
        if self._channel is not channel:
            return
        if self._replies:
            log.warning(
                "connection to a prefill coordinator lost",
                run=self.address.run,
                dc=self.address.dc_name,
                requests=self.busy,
            )
        self._channel = None
        waiting, self._replies = self._replies, {}
        for replies in waiting.values():
            replies.end(why)


_tasks: set[asyncio.Task[None]] = set()


def _in_background(work: Coroutine[None, None, None]) -> None:
    """Do `work` while nobody waits for it; the loop itself would not keep the task."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[CoordinatorAddress, GatewayConnection]] = (
    WeakKeyDictionary()
)


def connection_to(address: CoordinatorAddress) -> GatewayConnection:
    """This event loop's connection to a coordinator. Unused connections to earlier addresses are closed."""
    connections = _connections.setdefault(asyncio.get_running_loop(), {})
    if address not in connections:
        same = [one for one in connections if one.coordinator == address.coordinator]
        for unused in [one for one in same if not connections[one].busy]:
            _in_background(connections.pop(unused).close())
        connections[address] = GatewayConnection(address)
    return connections[address]


async def close_connections() -> None:
    """Close the connections of this event loop."""
    for connection in _connections.pop(asyncio.get_running_loop(), {}).values():
        await connection.close()
