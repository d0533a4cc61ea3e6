"""The WebSocket of a run: a snapshot, then events by `seq`, for those who may see the run."""

import asyncio
import contextlib
import time
from typing import Any

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from channels.generic.websocket import AsyncJsonWebsocketConsumer  # type: ignore[import-untyped]

from webapp.live.ingest import group_of
from webapp.live.selectors import snapshot, visible_run

PING_S = 20.0
NOT_FOUND = 4404  # close code: no such run for this user; the client does not try again
RESYNC_S = 0.5  # a client gets a snapshot at most so often


class RunConsumer(AsyncJsonWebsocketConsumer):
    """One browser on one run."""

    seq = -1
    epoch: float | None = None
    pinger: asyncio.Task[None] | None = None
    sent_at = 0.0

    async def connect(self) -> None:
        self.run_id: int = self.scope["url_route"]["kwargs"]["run_id"]
        await self.accept()
        if await database_sync_to_async(visible_run)(self.scope["user"], self.run_id) is None:
            await self.close(code=NOT_FOUND)
            return
        # Joined first, read then: what is committed in between comes as an event too.
        await self.channel_layer.group_add(group_of(self.run_id), self.channel_name)
        await self._send_snapshot()
        self.pinger = asyncio.create_task(self._ping())

    async def disconnect(self, code: int) -> None:
        if self.pinger:
            self.pinger.cancel()
        if hasattr(self, "run_id"):
            with contextlib.suppress(Exception):  # the broker may be what went away
                await self.channel_layer.group_discard(group_of(self.run_id), self.channel_name)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        if isinstance(content, dict) and content.get("type") == "resync":
            await asyncio.sleep(max(0.0, self.sent_at + RESYNC_S - time.monotonic()))
            await self._send_snapshot()

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        """What is no JSON is ignored like any other unknown message."""
        try:
            return await super().decode_json(text_data)
        except ValueError:
            return None

    async def run_events(self, event: dict[str, Any]) -> None:
        """A message of the run's group; what the snapshot holds already is left out."""
        message = event["message"]
        if message["seq"] > self.seq:
            self.seq = message["seq"]
            self.epoch = message.get("epoch", self.epoch)
            await self.send_json(message)

    async def _send_snapshot(self) -> None:
        whole = await database_sync_to_async(snapshot)(self.run_id)
        self.seq, self.epoch, self.sent_at = whole["seq"], whole["epoch"], time.monotonic()
        await self.send_json(whole)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            now = 0.0 if self.epoch is None else round(time.time() * 1e3 - self.epoch, 3)
            await self.send_json({"type": "ping", "now": now})
