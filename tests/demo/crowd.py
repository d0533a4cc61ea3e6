"""Many browsers on one run at once: who was let in, when each had its picture, and how late events came."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.demo.harness import Client

PATIENCE_S = 480.0  # 240 were too few for three hundred where three tests shared 0.8 of a core


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one socket met; times in seconds since its attempt began, None where it never came."""

    connect_s: float | None = None
    snapshot_s: float | None = None
    event_s: float | None = None
    delays_s: list[float] = field(default_factory=list)  # from ingest's writing a message to its arrival here
    gaps: int = 0  # places where `seq` skipped a message
    fault: str = ""


def watch(client: Client, path: str, count: int, listen_s: float) -> list[Seen]:
    """`count` sockets that open at the same moment; each stays `listen_s` after all have heard an event."""
    return asyncio.run(_crowd(client, path, count, listen_s))


async def _crowd(client: Client, path: str, count: int, listen_s: float) -> list[Seen]:
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in client.jar)
    crowd = [Seen() for _ in range(count)]
    done = asyncio.Event()
    tasks = [asyncio.create_task(_one(seen, client.url, path, cookies, done)) for seen in crowd]
    deadline = time.monotonic() + PATIENCE_S
    while not all(seen.event_s or seen.fault for seen in crowd) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    await asyncio.sleep(listen_s)
    done.set()
    await asyncio.gather(*tasks)
    return crowd


async def _one(seen: Seen, url: str, path: str, cookies: str, done: asyncio.Event) -> None:
    began = time.monotonic()
    try:
        async with connect(
            url.replace("http", "ws", 1) + path,
            additional_headers={"Cookie": cookies},
            origin=url,  # type: ignore[arg-type]
            open_timeout=PATIENCE_S,
            ping_timeout=None,  # this process is as busy as the server
            max_size=2**25,
        ) as socket:
            seen.connect_s = time.monotonic() - began
            await _listen(seen, socket, began, done)
    except (OSError, WebSocketException, TimeoutError) as error:
        seen.fault = f"{type(error).__name__}: {error}"


async def _listen(seen: Seen, socket: ClientConnection, began: float, done: asyncio.Event) -> None:
    epoch, seq = 0.0, -1
    while not done.is_set():
        try:
            text = await asyncio.wait_for(socket.recv(), 1.0)
        except TimeoutError:
            continue
        now = time.time()
        message = json.loads(text)
        if message["type"] == "snapshot":
            seen.snapshot_s = seen.snapshot_s or time.monotonic() - began
            epoch, seq = message["epoch"] or 0.0, message["seq"]
        elif message["type"] == "events":
            seen.event_s = seen.event_s or time.monotonic() - began
            seen.gaps += message["seq"] != seq + 1
            seq, epoch = message["seq"], message.get("epoch") or epoch
            seen.delays_s.append(now - (epoch + message["now"]) / 1e3)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
