"""One snapshot of a run for all browsers that ask at the same moment.

A page that hundreds watch is opened by hundreds at once: after the web process has started again, each of
their sockets asks for a snapshot. Reading and encoding it once for all of them takes as long as for one.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from channels.db import database_sync_to_async  # type: ignore[import-untyped]

from webapp.live.selectors import snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A snapshot as it goes over the socket, and what the consumer must know of it."""

    seq: int
    epoch: float | None
    text: str


_next: dict[int, "asyncio.Task[Picture]"] = {}  # run → the reading that has not begun
_now: dict[int, "asyncio.Task[Picture]"] = {}  # run → the reading that has


async def picture(run_id: int) -> Picture:
    """A snapshot of the run that was begun after this call: it lacks nothing that the caller was not told.

    Whoever calls while one is being read shares the next one.
    """
    task = _next.get(run_id)
    if task is None or task.get_loop() is not asyncio.get_running_loop():
        task = _next[run_id] = asyncio.create_task(_read(run_id))
    return await asyncio.shield(task)  # a caller that goes away takes nothing from the others


async def _read(run_id: int) -> Picture:
    before = _now.get(run_id)
    if before is not None and before.get_loop() is asyncio.get_running_loop():
        await asyncio.wait([before])
    task = _next.pop(run_id)
    _now[run_id] = task
    try:
        return await database_sync_to_async(_encoded)(run_id)
    finally:
        if _now.get(run_id) is task:
            del _now[run_id]


def _encoded(run_id: int) -> Picture:
    whole: dict[str, Any] = snapshot(run_id)
    return Picture(seq=whole["seq"], epoch=whole["epoch"], text=json.dumps(whole))
