"""The WebSocket of a run: a snapshot, then events by `seq`, for those who may see the run."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import structlog
from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from channels.generic.websocket import AsyncJsonWebsocketConsumer  # type: ignore[import-untyped]
from django.conf import settings

from engine.documents import read_json
from webapp.common.at_once import AtOnce
from webapp.live.ingest import group_of, group_of_person
from webapp.live.selectors import may_still_watch, messages_since, visible_run
from webapp.live.sharing import picture

log = structlog.get_logger(__name__)
PING_S = 20.0
TRY_AGAIN = 1011  # close code: something failed on our side
TOO_MANY = 4429  # close code: this person has too many sockets open; the client asks by HTTP, and tries again
NOT_FOUND = 4404  # close code: no such run for this user; the client does not try again
OPENING_S = 0.1  # for a client to say that it comes back, and from where
MOST_MESSAGE = 1024  # characters of what a client says
RESYNC_S = 0.5  # a client gets a snapshot at most so often


_open = AtOnce()


class RunConsumer(AsyncJsonWebsocketConsumer):
    """One browser on one run."""

    seq = -1
    epoch: float | None = None
    pinger: asyncio.Task[None] | None = None
    opener: asyncio.Task[None] | None = None
    sent_at = 0.0
    release: Callable[[], None] | None = None
    held: list[dict[str, Any]] | None  # events that come before the first answer wait for it

    async def __call__(self, *args: Any) -> None:
        try:
            await super().__call__(*args)
        finally:  # `disconnect` is not called after an error
            if self.release:
                self.release()

    async def connect(self) -> None:
        self.held = []
        self.run_id: int = self.scope["url_route"]["kwargs"]["run_id"]
        await self.accept()
        if await database_sync_to_async(visible_run)(self.scope["user"], self.run_id) is None:
            await self.close(code=NOT_FOUND)
            return
        self.release = _open.open(self.scope["user"].pk, settings.SOCKETS_PER_PERSON)
        if self.release is None:
            await self.close(code=TOO_MANY)
            return
        # Joined first, read then: what is committed in between comes as an event too.
        for group in self._groups():
            await self.channel_layer.group_add(group, self.channel_name)
        self.pinger = asyncio.create_task(self._ping())
        self.opener = asyncio.create_task(self._open())

    async def disconnect(self, code: int) -> None:
        for task in (self.pinger, self.opener):
            if task:
                task.cancel()
        if hasattr(self, "run_id"):
            with contextlib.suppress(Exception):  # the broker may be what went away
                for group in self._groups():
                    await self.channel_layer.group_discard(group, self.channel_name)

    async def send(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to a client that has just gone: a server raises OSError then (ASGI); `disconnect` comes."""
        with contextlib.suppress(OSError):
            await super().send(*args, **kwargs)

    async def send_json(self, content: Any, close: bool = False) -> None:
        """The parent's would go past `send` above."""
        await self.send(text_data=await self.encode_json(content), close=close)

    def _groups(self) -> tuple[str, str]:
        return group_of(self.run_id), group_of_person(self.scope["user"].pk)

    async def receive(self, text_data: str | None = None, **kwargs: Any) -> None:
        """Bytes, or nothing at all, are ignored too; the parent would raise an error of ours."""
        if text_data:
            await super().receive(text_data=text_data, **kwargs)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        kind = content.get("type") if isinstance(content, dict) else None
        if kind not in ("resync", "since"):
            return
        if self.opener:
            self.opener.cancel()
        seq = content.get("seq")
        if kind == "since" and type(seq) is int and await self._send_since(seq):
            return
        await asyncio.sleep(max(0.0, self.sent_at + RESYNC_S - time.monotonic()))
        await self._send_snapshot()

    async def _open(self) -> None:
        """A snapshot, unless the client says within a moment what it knows already."""
        await asyncio.sleep(OPENING_S)
        try:
            await self._send_snapshot()
        except Exception:
            log.exception("no snapshot", run=self.run_id)
            await self.close(code=TRY_AGAIN)

    async def _send_since(self, seq: int) -> bool:
        """Send what came after `known`, if the server still has all of it."""
        missed = await database_sync_to_async(messages_since)(self.run_id, seq)
        if missed is None:
            return False
        self.seq = seq
        for message in missed:
            await self._tell(message)
        await self._let_go()
        return True

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        """What is no JSON, or too long, is ignored like any other unknown message."""
        try:
            return read_json(text_data, most_bytes=MOST_MESSAGE)
        except ValueError:
            return None

    async def run_events(self, event: dict[str, Any]) -> None:
        """A message of the run's group."""
        if self.held is None:
            await self._tell(event["message"])
        else:
            self.held.append(event["message"])

    async def rights_changed(self, event: dict[str, Any]) -> None:
        """A message to all sockets of a person: what they may see may be less now."""
        await self._close_if_forbidden()

    async def _close_if_forbidden(self) -> bool:
        if await database_sync_to_async(may_still_watch)(self.scope, self.run_id):
            return False
        await self.close(code=NOT_FOUND)
        return True

    async def _tell(self, message: dict[str, Any]) -> None:
        """Send a message, unless the client has it already."""
        if message["seq"] > self.seq:
            self.seq = message["seq"]
            self.epoch = message.get("epoch", self.epoch)
            await self.send_json(message)

    async def _send_snapshot(self) -> None:
        whole = await picture(self.run_id)
        self.seq, self.epoch, self.sent_at = whole.seq, whole.epoch, time.monotonic()
        await self.send(text_data=whole.text)
        await self._let_go()

    async def _let_go(self) -> None:
        while self.held:
            await self._tell(self.held.pop(0))
        self.held = None

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            if await self._close_if_forbidden():
                return
            now = 0.0 if self.epoch is None else round(time.time() * 1e3 - self.epoch, 3)
            await self.send_json({"type": "ping", "now": now})
