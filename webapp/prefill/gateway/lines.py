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


class Exchange:
    """What is said about one request."""

    def __init__(self, line: "CoordinatorLine", request: str) -> None:
        self.request = request
        self._line = line
        self._held: deque[Answer] = deque()
        self._news = asyncio.Event()
        self._end: Exception | None = None

    def take(self, answer: Answer) -> None:
        """The coordinator has said something."""
        if self._end is not None:
            return
        if len(self._held) >= MOST_HELD:
            self.end(SlowClient())
            self._line.withdraw_later(self.request)
            return
        self._held.append(answer)
        self._news.set()

    def end(self, why: Exception) -> None:
        """Nothing more will come."""
        self._end = self._end or why
        self._news.set()

    async def next(self, within_s: float) -> Answer:
        """What was said next. Raises ChannelLost, SlowClient, TimeoutError."""
        async with asyncio.timeout(within_s):
            while not self._held:
                if self._end is not None:
                    raise self._end
                self._news.clear()
                await self._news.wait()
        return self._held.popleft()

    async def withdraw(self) -> None:
        """The request is of no use any more."""
        self._line.forget(self.request)
        await self._line.withdraw(self.request)

    def close(self) -> None:
        """All was said."""
        self._line.forget(self.request)


class CoordinatorLine:
    """The connection to one coordinator; made when it is first needed, and again after it was lost."""

    def __init__(self, address: CoordinatorAddress) -> None:
        self.address = address
        self._line: AsyncChannel[Answer] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._exchanges: dict[str, Exchange] = {}
        self._failed_at = float("-inf")

    @property
    def busy(self) -> int:
        """Requests that are on it."""
        return len(self._exchanges)

    async def ask(self, ask: PrefillRequest) -> Exchange:
        """Send a request. Raises ChannelLost: the coordinator cannot be reached."""
        line = await self._connected()
        exchange = self._exchanges[ask.request] = Exchange(self, ask.request)
        try:
            async with asyncio.timeout(SEND_S):
                await line.send(ask)
        except TimeoutError:
            self._lost(line, ChannelLost("the prefill coordinator does not read what is sent"))
            raise ChannelLost("the prefill coordinator does not read what is sent") from None
        except BaseException:
            self.forget(ask.request)
            raise
        return exchange

    async def withdraw(self, request: str) -> None:
        """Tell the coordinator that a request is of no use any more; a line that is lost says so itself."""
        if self._line is None:
            return
        try:
            async with asyncio.timeout(SEND_S):
                await self._line.send(Withdraw(request=request))
        except (ChannelLost, TimeoutError):
            pass

    def withdraw_later(self, request: str) -> None:
        _aside(self.withdraw(request))

    def forget(self, request: str) -> None:
        self._exchanges.pop(request, None)

    async def close(self) -> None:
        """End the connection; what is on it is lost."""
        line, reader = self._line, self._reader
        if line is None:
            return
        self._lost(line, ChannelLost("the connection was closed"))
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        await line.close()

    async def _connected(self) -> AsyncChannel[Answer]:
        async with self._connecting:
            if self._line is None:
                self._line = await self._connect()
                self._reader = asyncio.create_task(self._read(self._line))
            return self._line

    async def _connect(self) -> AsyncChannel[Answer]:
        to, loop = self.address, asyncio.get_running_loop()
        if loop.time() - self._failed_at < CONNECT_AGAIN_S:
            raise ChannelLost("the prefill coordinator could not be reached a moment ago")
        me = Identity(rank=GATEWAY_RANK, run=to.run, generation=to.generation, secret=to.secret.encode())
        try:
            return await call(to.host, to.port, me, to.rank, FROM_COORDINATOR, seconds=CONNECT_S)
        except OSError as error:
            self._failed_at = loop.time()
            log.warning(
                "prefill coordinator not reached", run=to.run, dc=to.dc_name, error=str(error) or "no answer"
            )
            raise ChannelLost("the prefill coordinator could not be reached") from error

    async def _read(self, line: AsyncChannel[Answer]) -> None:
        why = ChannelLost("the prefill coordinator closed the connection")
        try:
            async for answer in line.messages():
                exchange = self._exchanges.get(answer.request)
                if exchange is not None:
                    exchange.take(answer)
        except ChannelLost as error:
            why = error
        finally:
            self._lost(line, why)
            await line.close()

    def _lost(self, line: AsyncChannel[Answer], why: ChannelLost) -> None:
        """Everything on `line` ends; the next request makes a new one."""
        if self._line is not line:
            return
        if self._exchanges:
            log.warning(
                "connection to a prefill coordinator lost",
                run=self.address.run,
                dc=self.address.dc_name,
                requests=self.busy,
            )
        self._line = None
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.end(why)


_tasks: set[asyncio.Task[None]] = set()


def _aside(work: Coroutine[None, None, None]) -> None:
    """Do `work` while nobody waits for it; the loop itself would not keep the task."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[CoordinatorAddress, CoordinatorLine]] = (
    WeakKeyDictionary()
)


def line_to(address: CoordinatorAddress) -> CoordinatorLine:
    """This event loop's connection to a coordinator; connections to closed ones are dropped on the way."""
    lines = _lines.setdefault(asyncio.get_running_loop(), {})
    if address not in lines:
        for old in [one for one in lines if one.coordinator == address.coordinator and not lines[one].busy]:
            _aside(lines.pop(old).close())
        lines[address] = CoordinatorLine(address)
    return lines[address]


async def close_lines() -> None:
    """Close the lines of this event loop."""
    for line in _lines.pop(asyncio.get_running_loop(), {}).values():
        await line.close()
