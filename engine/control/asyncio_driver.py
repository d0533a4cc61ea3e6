"""The control channel in an asyncio loop: prefill coordinators, and gateways in the site's web process."""

import asyncio
import contextlib
import logging
import socket
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic

from engine.control.channel import MOST_UNREAD_BYTES, Channel, Unproven
from engine.control.errors import AuthenticationError, ChannelLost
from engine.control.handshake import HANDSHAKE_S, Greeting, Handshake, Identity, dial, listen
from engine.control.messages import M, Messages, line_of
from engine.inputs import Document

log = logging.getLogger(__name__)


class AsyncChannel(Generic[M]):
    """A channel on an asyncio stream; `greet` comes first."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handshake: Handshake,
        incoming: Messages[M],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._channel = Channel(handshake, incoming)

    async def greet(self) -> Greeting:
        """Hold the handshake. Raises AuthenticationError, ChannelLost, OSError."""
        handshake = self._channel.handshake
        self._writer.write(handshake.outgoing())
        while handshake.greeting is None:
            await self._writer.drain()
            data = await self._reader.read(handshake.wants)
            if not data:
                raise ChannelLost("the other side left during the handshake")
            try:
                handshake.feed(data)
            except AuthenticationError:
                self._writer.write(handshake.outgoing())  # it is told why it is refused
                raise
            self._writer.write(handshake.outgoing())
        return handshake.greeting

    async def send(self, message: Document) -> None:
        """Send a message; waits while the other side is slow. Raises ChannelLost."""
        try:
            self._writer.write(line_of(message))
            await self._writer.drain()
        except OSError as error:
            raise ChannelLost(f"the connection was lost: {error.strerror or error}") from error

    def post(self, message: Document) -> None:
        """Send a message without waiting. A side that does not read is given up: its reads end."""
        if self._writer.is_closing():
            return
        self._writer.write(line_of(message))
        if self._writer.transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
            self._writer.transport.abort()

    async def messages(self) -> AsyncIterator[M]:
        """The messages as they come, until the other side closes. Raises ChannelLost."""
        while True:
            try:
                data = await self._reader.read(self._channel.wants)
            except OSError as error:
                raise ChannelLost(f"the connection was lost: {error}") from error
            if not data:
                return
            for message in self._channel.receive(data):
                yield message

    async def close(self) -> None:
        """Close it when what was sent is gone."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()


async def call(
    host: str, port: int, me: Identity, peer: int, incoming: Messages[M], *, seconds: float = HANDSHAKE_S
) -> AsyncChannel[M]:
    """Connect to `peer` at (host, port).

    Raises AuthenticationError, ChannelLost, OSError (among them TimeoutError: it took more than `seconds`).
    """
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(host, port)
        channel = AsyncChannel(reader, writer, Handshake(dial(me, peer=peer)), incoming)
        try:
            await channel.greet()
        except BaseException:
            writer.close()
            raise
    return channel


async def serve(
    listening: socket.socket,
    me: Identity,
    incoming: Messages[M],
    attend: Callable[[AsyncChannel[M], Greeting], Awaitable[None]],
) -> asyncio.Server:
    """Take connections at a listening socket; `attend` runs for each that knows the secret, to its end.

    A ValueError that `attend` raises means that a message makes no sense now: the connection is closed.
    """
    unproven = Unproven()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = AsyncChannel(reader, writer, Handshake(listen(me)), incoming)
        unproven.add(channel, channel.abort)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                greeting = await channel.greet()
            unproven.remove(channel)
            await attend(channel, greeting)
        except OSError:
            pass  # it knows no secret, is gone, or says what is no message: there is nobody to tell
        except ValueError as error:
            # Its text may quote a prompt: where it was raised says enough.
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.warning("a message was refused: %s at %s:%s", type(error).__name__, place.name, place.lineno)
        finally:
            unproven.remove(channel)
            await channel.close()

    return await asyncio.start_server(take, sock=listening)
