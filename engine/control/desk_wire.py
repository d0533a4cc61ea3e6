"""A connection to a prefill coordinator, seen from either end: the handshake, then JSON lines both ways.

asyncio and no torch: the gateway in the site's web process uses it as well as the coordinator.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from engine.control.errors import TransportError
from engine.control.handshake import Dialogue, Greeting, Identity, dial, listen
from engine.inputs import Document
from engine.prefill.desk import (
    MOST_LINE_BYTES,
    Accepted,
    Ask,
    Done,
    Failed,
    Refused,
    Token,
    Withdraw,
    from_desk,
    line_of,
    to_desk,
)

DESK_RANK = (
    1_000_000  # of the coordinator of the run's first data centre, the next one's is one more: past all ranks
)
GATEWAY_RANK = 2_000_000
HANDSHAKE_S = 5.0
Answer = Accepted | Refused | Token | Done | Failed


class DeskLost(TransportError):
    """The connection ended, or what came was no message."""


class Line:
    """One side of a connection after the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, message: Document) -> None:
        """Send one message; waits while the other side is slow. Raises DeskLost."""
        try:
            self._writer.write(line_of(message))
            await self._writer.drain()
        except OSError as error:
            raise DeskLost(f"the connection was lost: {error.strerror or error}") from error

    async def lines(self) -> AsyncIterator[bytes]:
        """Lines as they come, until the other side closes. Raises DeskLost."""
        while True:
            try:
                line = await self._reader.readline()
            except (OSError, ValueError) as error:  # ValueError: a line over the limit
                raise DeskLost(f"the connection was lost: {error}") from error
            if not line.endswith(b"\n"):
                return
            yield line

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def call(host: str, port: int, me: Identity, desk_rank: int) -> Line:
    """Connect to the coordinator at (host, port) that has `desk_rank`; `me` is the gateway.

    Raises AuthenticationError, DeskLost, OSError (among them TimeoutError).
    """
    async with asyncio.timeout(HANDSHAKE_S):
        reader, writer = await asyncio.open_connection(host, port, limit=MOST_LINE_BYTES)
        try:
            await greet(reader, writer, dial(me, peer=desk_rank, index=0, count=1))
        except BaseException:
            writer.close()
            raise
    return Line(reader, writer)


async def open_desk(
    host: str, port: int, me: Identity, serve: Callable[[Line], Awaitable[None]]
) -> asyncio.Server:
    """Listen at (host, port); `serve` runs for each gateway that knows the run's secret. Raises OSError."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await greet(reader, writer, listen(me))
            await serve(line)
        except (TransportError, OSError):
            pass  # it knows no secret, or is gone: there is nobody to tell
        finally:
            await line.close()

    return await asyncio.start_server(take, host, port, limit=MOST_LINE_BYTES)


async def answers(line: Line) -> AsyncIterator[Answer]:
    """The next message of the prefill coordinator. Raises DeskLost."""
    async for text in line.lines():
        try:
            yield from_desk(text)
        except ValueError as error:
            raise DeskLost("the prefill coordinator sent an invalid message") from error


async def asks(line: Line) -> AsyncIterator[Ask | Withdraw]:
    """The next message of the gateway. Raises DeskLost."""
    async for text in line.lines():
        try:
            yield to_desk(text)
        except ValueError as error:
            raise DeskLost("the gateway sent an invalid message") from error


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dialogue: Dialogue) -> Greeting:
    """Hold a handshake. Raises AuthenticationError, DeskLost, OSError."""
    try:
        step = next(dialogue)
        while True:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
                step = next(dialogue)
            else:
                step = dialogue.send(await reader.readexactly(step))
    except StopIteration as finished:
        greeting: Greeting = finished.value
        return greeting
    except asyncio.IncompleteReadError as error:
        raise DeskLost("the other side left during the handshake") from error
