"""Ingest: from the nodes' streams into the database, and on to the browsers.

One loop: read what there is from every stream in consumer group ``ingest``, write it in one transaction,
acknowledge and delete it, notify. Killed anywhere, the next start begins with what was not acknowledged,
and what was written already is known by its key. A batch is at most every 200 ms, so a browser hears of a
run at most five times a second.

Ingest also sees to it that nodes can be heard: every 2 s it gives the broker back what it has lost of their
users and groups, and tries whether it takes writes. After any time in which nodes could not be heard, it
begins to listen anew (webapp/computations/liveness.py), so that none is called silent for it.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.db import InterfaceError, OperationalError, close_old_connections
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from engine.job.events.event import Event, from_json
from webapp.common import broker
from webapp.common.broker import CHANGES, PROBE
from webapp.computations import liveness
from webapp.computations.claim import BrokerTaken, claim_broker
from webapp.inventory.models import Node
from webapp.inventory.services import NodeUsers, bound_reports, cut_crowds
from webapp.live import recent
from webapp.live.services import add_refusal, record_refusals, take_in
from webapp.live.services.refusals import Refusals

log = structlog.get_logger(__name__)
GROUP = "ingest"
CONSUMER = "ingest"  # the one ingest process: after a restart it finds its own unacknowledged entries
MOST_ENTRIES = 500  # of one stream in one batch
MOST_BYTES = 8_000_000  # of one answer: Valkey cuts off whoever it owes too much, ingest too
PERIOD_S = 0.2
BLOCK_MS = 500
NODES_AGAIN_S = 2.0
RETRY_S = 1.0
FINISH_S = 2.0

Entries = dict[str, list[tuple[str, dict[str, str]]]]  # stream → entries


def group_of(run_id: int) -> str:
    """The channel group of a run's browsers."""
    return f"run.{run_id}"


def group_of_person(user_id: int) -> str:
    """The channel group of all sockets of a person."""
    return f"person.{user_id}"


def stream_of(node: str) -> str:
    """The key of a node's event stream."""
    return f"node:{node}:events"


def counts(sizes: Mapping[str, float]) -> tuple[dict[str, int], int]:
    """How many entries to read at once: of each stream with large entries alone, and of all others together.

    Parameters
    ----------
    sizes : bytes of an entry, by stream, on average.
    """
    few = {stream: max(1, int(MOST_BYTES / size)) for stream, size in sizes.items()}
    few = {stream: most for stream, most in few.items() if most < MOST_ENTRIES}
    together = sum(size for stream, size in sizes.items() if stream not in few)
    return few, max(1, min(MOST_ENTRIES, int(MOST_BYTES / together))) if together else MOST_ENTRIES


class Ingest:
    """The loop; `run` returns when `stop` is set."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._nodes: dict[str, str] = {}  # stream → node
        self._looked = 0.0
        self._recovered: set[str] = set()  # streams whose unacknowledged entries have been read again
        self._beaten = 0.0
        self._users = NodeUsers()
        self._counts: tuple[dict[str, int], int] = {}, MOST_ENTRIES  # see `counts`
        self._deaf = False  # nodes could not be heard since the last beat
        self._takes_writes = True
        self._taken = ""  # who else uses the broker
        self._broker_behind_ms = 0  # its clock, as of the last look
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped; a broker or database that is away is waited for."""
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                await self.round()
            except (RedisError, OSError, OperationalError, InterfaceError) as error:
                log.warning("ingest waits", error=str(error))
                self._deaf = True
                self._looked, self._recovered = 0.0, set()
                await sync_to_async(close_old_connections)()
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(max(0.0, PERIOD_S - (time.monotonic() - began)))
        await self._finish()

    async def _finish(self) -> None:
        """Take in what agents said that ended before: how their runs ended is not left to the next start.

        Agents elsewhere go on talking; they are not waited for.
        """
        until = time.monotonic() + FINISH_S
        try:
            while await self.round() and time.monotonic() < until:
                pass
        except (RedisError, OSError, OperationalError, InterfaceError) as error:
            log.warning("the last events stay in their streams", error=str(error))

    async def round(self) -> int:
        """One batch; returns the number of entries."""
        await self._look_for_nodes()
        entries = await self._read()
        await self._beat()
        events, changed, people, refused = self._decoded(entries)
        messages = await sync_to_async(take_in_or_refuse)(events, changed) if events or changed else []
        if refused:
            await sync_to_async(record_refusals)(refused)
        await self._acknowledge(entries)
        await self._notify(messages)
        for person in people:
            await self._say(group_of_person(person), {"type": "rights.changed"})
        return sum(map(len, entries.values()))

    async def _look_for_nodes(self) -> None:
        if time.monotonic() - self._looked < NODES_AGAIN_S:
            return
        names = await sync_to_async(lambda: list(Node.objects.values_list("name", flat=True)))()
        await self._bound(names)
        await self._mend_users()
        await self._keep_claim()
        await self._compare_clocks()
        await self._try_to_write()
        streams = {stream_of(name): name for name in names} | {CHANGES: ""}
        for stream in streams.keys() - self._nodes.keys() if self._looked else list(streams):
            if not await self._make_group(stream):
                del streams[stream]
        self._nodes = streams
        self._recovered &= streams.keys()
        self._looked = time.monotonic()

    async def _bound(self, names: list[str]) -> None:
        """Refuse nodes that hold too much of the broker, and read streams of large entries in small parts."""
        async with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.xlen(stream_of(name))
                pipe.memory_usage(stream_of(name), samples=0)
            answers = await pipe.execute()
        sizes = {name: size or 0 for name, size in zip(names, answers[1::2], strict=True)}
        lengths = dict(zip(names, answers[::2], strict=True))
        self._counts = counts(
            {stream_of(name): sizes[name] / lengths[name] for name in names if lengths[name]}
        )
        _, taken = await sync_to_async(bound_reports)(sizes)
        self._deaf |= bool(taken)  # they could not report: that was no silence

    async def _mend_users(self) -> None:
        await sync_to_async(cut_crowds)(broker.client())
        lost = await sync_to_async(self._users.reconcile)(broker.client())
        if lost:
            log.warning("the broker had lost nodes: given back", nodes=lost)
            self._deaf = True

    async def _keep_claim(self) -> None:
        """Claim the broker again where it lost that, or another site could take it without a word."""
        try:
            await sync_to_async(claim_broker)()
            taken = ""
        except OutOfMemoryError:  # it has lost the claim, and is full: later
            return
        except BrokerTaken as error:
            taken = str(error)
        if taken and taken != self._taken:
            log.error("another site uses the broker", error=taken)
        self._taken = taken

    async def _compare_clocks(self) -> None:
        """Find out how far the broker's clock, which dates what nodes say, is behind ours."""
        before = time.time()
        seconds, microseconds = await self._client.time()
        ours = (before + time.time()) / 2
        self._broker_behind_ms = round((ours - seconds) * 1e3 - microseconds / 1e3)

    async def _try_to_write(self) -> None:
        """Find out whether nodes can append: not to a broker that is full, read-only or without a disk."""
        try:
            await self._client.set(PROBE, 1)
            why = ""
        except ResponseError as error:
            why = str(error)
            self._deaf = True
        if self._takes_writes == bool(why):
            say = log.warning if why else log.info
            say("the broker takes no writes" if why else "the broker takes writes again", error=why)
        self._takes_writes = not why

    async def _make_group(self, stream: str) -> bool:
        """Whether the group is there now. A full broker makes none, and is emptied by reading the others."""
        try:
            await self._client.xgroup_create(stream, GROUP, id="0", mkstream=True)
        except OutOfMemoryError:
            return await self._has_group(stream)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        return True

    async def _has_group(self, stream: str) -> bool:
        try:
            groups = await self._client.xinfo_groups(stream)
        except ResponseError:  # no such stream
            return False
        return any(group["name"] == GROUP for group in groups)

    async def _read(self) -> Entries:
        """What was delivered and never acknowledged first, then what is new."""
        behind = [stream for stream in self._nodes if stream not in self._recovered]
        if behind:
            again = await self._xread(dict.fromkeys(behind, "0"), None)
            self._recovered |= set(behind) - again.keys()
            if again:
                return again
        entries: Entries = {}
        few, most = self._counts
        for stream in few.keys() & self._nodes.keys():
            entries |= await self._xread({stream: ">"}, None, few[stream])
        others = dict.fromkeys(self._nodes.keys() - few.keys(), ">")
        if not others:  # the streams were lost meanwhile
            return entries
        return entries | await self._xread(others, None if entries else BLOCK_MS, most)

    async def _xread(self, streams: Any, block_ms: int | None, count: int = MOST_ENTRIES) -> Entries:
        try:
            answer = await self._client.xreadgroup(GROUP, CONSUMER, streams, count=count, block=block_ms)
        except ResponseError as error:
            if "NOGROUP" in str(error):  # a stream was deleted under us, or all data was
                log.warning("the broker had lost streams: their groups are made again")
                self._deaf = True
                self._looked, self._nodes = 0.0, {}
                return {}
            raise
        pairs = answer.items() if isinstance(answer, dict) else answer or []
        return {str(stream): _flat(entries) for stream, entries in pairs if _flat(entries)}

    async def _beat(self) -> None:
        if time.monotonic() - self._beaten >= 1.0:
            await sync_to_async(liveness.beat)(anew=self._deaf)
            self._deaf = False
            self._beaten = time.monotonic()

    def _decoded(self, entries: Entries) -> tuple[list[tuple[str, str, Event]], set[int], set[int], Refusals]:
        """Events of nodes, runs that were changed, people whose rights were, and what is no event."""
        refused: Refusals = {}
        events: list[tuple[str, str, Event]] = []
        changed: dict[str, set[int]] = {"run": set(), "person": set()}
        for stream, stream_entries in entries.items():
            for entry, fields in stream_entries:
                if stream == CHANGES:
                    for kind in changed.keys() & fields.keys():
                        changed[kind].add(int(fields[kind]))
                    continue
                try:
                    event = from_json(fields.get("e", ""))
                    events.append((self._nodes[stream], self._by_our_clock(entry), event))
                except ValueError as error:
                    add_refusal(refused, self._nodes[stream], str(error))
        return events, changed["run"], changed["person"], refused

    def _by_our_clock(self, entry: str) -> str:
        """The id of a stream entry as the broker would have given it if its clock were ours."""
        received, _, number = entry.partition("-")
        return f"{int(received) + self._broker_behind_ms}-{number}"

    async def _acknowledge(self, entries: Entries) -> None:
        if not entries:
            return
        async with self._client.pipeline(transaction=False) as pipe:
            for stream, stream_entries in entries.items():
                ids = [entry for entry, _ in stream_entries]
                pipe.xack(stream, GROUP, *ids)
                pipe.xdel(stream, *ids)
            await pipe.execute()

    async def _notify(self, messages: list[tuple[int, dict[str, Any]]]) -> None:
        if messages:
            try:
                await recent.keep(self._client, messages)
            except (RedisError, OSError) as error:  # who asks for them gets a snapshot
                log.warning("recent messages not kept", error=str(error))
        for run_id, message in messages:
            await self._say(group_of(run_id), {"type": "run.events", "message": message})

    async def _say(self, group: str, message: dict[str, Any]) -> None:
        try:
            await get_channel_layer().group_send(group, message)
        except (RedisError, OSError) as error:  # browsers find the gap in seq, or ask again with their ping
            log.warning("browsers not told", group=group, error=str(error))


def take_in_or_refuse(
    events: list[tuple[str, str, Event]], changed: set[int]
) -> list[tuple[int, dict[str, Any]]]:
    """As `take_in`; an event that cannot be taken in is logged and left out, the others are written.

    A node may send anything. Without this, one such event would be read again at every start of ingest,
    and no event after it would ever be taken in.
    """
    try:
        return take_in(events, changed)
    except (OperationalError, InterfaceError):
        raise  # it is the database, not the event
    except Exception as error:
        if not events:
            raise
        if len(events) == 1:
            node, _, event = events[0]
            why = f"{type(error).__name__}: {error}"
            record_refusals({node: (1, f"{event.kind}: {why}")})
            return take_in([], changed) if changed else []
    half = len(events) // 2
    return take_in_or_refuse(events[:half], changed) + take_in_or_refuse(events[half:], set())


def _flat(entries: Any) -> list[tuple[str, dict[str, str]]]:
    """Entries of one stream as (id, fields), whichever way the protocol nests them; deleted ones left out."""
    if entries and isinstance(entries[0], list):
        entries = [entry for group in entries for entry in group]
    return [(entry, fields or {}) for entry, fields in entries or []]
