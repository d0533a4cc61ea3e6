"""Sends a node's events to its stream: in batches, in order, and through any absence of the broker.

While the broker answers, events wait in memory for at most 0.1 s and go out in one pipeline. From the first
failure on, they go to the spool on disk, and from there when the broker is back, before anything newer.
A stream that nobody reads (its length past `stream_limit`) counts as a broker that is away: the node's
disk is the place for a backlog, not the broker's memory.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable

import redis

from engine.job.events.base import BaseEvent
from engine.job.events.node import Heartbeat
from workers.spool import Entry, Spool

log = logging.getLogger(__name__)

FLUSH_S = 0.1
BATCH = 256
MEMORY_BYTES = 8 * 1024 * 1024
STREAM_LIMIT = 20_000
LONGEST_WAIT_S = 5.0


class Publisher:
    """The one thread that talks to the stream.

    Parameters
    ----------
    connect : makes a client of the broker, with short time-outs and without retries of its own.
    stream : key of the stream; each entry has one field ``e`` with the event's JSON.
    node : added to every event.
    spool : where events wait while they cannot be sent.
    """

    def __init__(
        self,
        connect: Callable[[], "redis.Redis"],
        *,
        stream: str,
        node: str,
        spool: Spool,
        flush_s: float = FLUSH_S,
        memory_bytes: int = MEMORY_BYTES,
        stream_limit: int = STREAM_LIMIT,
    ) -> None:
        self._connect = connect
        self._stream = stream
        self._node = node
        self._spool = spool
        self._flush_s = flush_s
        self._memory_bytes = memory_bytes
        self._stream_limit = stream_limit
        self._client: redis.Redis | None = None
        self._changed = threading.Condition()
        self._pending: deque[tuple[Entry, bool]] = deque()  # (entry, vital)
        self._pending_bytes = 0
        self._latest: dict[type[BaseEvent], BaseEvent] = {}
        self._last_id = 0
        self._in_hand = 0  # the first of the batch that is being sent
        self._lost = 0
        self._stopping = False
        self._failures = 0
        self._down_since: float | None = None
        self._next_try = 0.0
        self._disk_refuses = False
        self._unread = 0  # length of the stream after the last batch
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start sending; what an earlier process left in the spool goes first."""
        self._thread.start()

    def put(self, event: BaseEvent) -> None:
        """Hand over an event of a run; returns at once and never raises for a broker that is away."""
        with self._changed:
            entry = self._encoded(event)
            self._pending.append((entry, event.vital))
            self._pending_bytes += len(entry[1])
            if self._pending_bytes > self._memory_bytes:
                self._spill()
            if len(self._pending) >= BATCH or len(self._pending) == 1:
                self._changed.notify()

    def put_latest(self, event: BaseEvent) -> None:
        """Hand over an event of the node's present state, as a heartbeat is.

        It replaces one of its kind that was not sent yet, for an old one tells nothing.
        """
        with self._changed:
            self._latest[type(event)] = event
            self._changed.notify()

    @property
    def position(self) -> int:
        """The number of the last event that was handed over."""
        return self._last_id

    @property
    def safe(self) -> int:
        """Events up to this number are with the broker, or on disk."""
        with self._changed:
            unsafe = self._in_hand or (self._pending[0][0][0] if self._pending else 0)
            return unsafe - 1 if unsafe else self._last_id

    def note_lost(self, count: int) -> None:
        """Count events that were dropped before they came here."""
        with self._changed:
            self._lost += count

    def stop(self, patience_s: float = 1.5) -> None:
        """Send what waits if the broker answers within `patience_s`; the rest stays in the spool."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(patience_s)
        with self._changed:
            self._spill()
        if self._client is not None:
            self._client.close()

    @property
    def lost(self) -> int:
        """Spans and log lines dropped since the start: the bound of the spool or of the disk was reached."""
        return self._lost + self._spool.dropped

    @property
    def waiting(self) -> int:
        """Events not yet sent."""
        return len(self._pending) + len(self._spool)

    def _encoded(self, event: BaseEvent) -> Entry:
        # Ids grow over restarts of the agent too, so they start from the clock.
        self._last_id = max(self._last_id + 1, time.time_ns() // 1000)
        return self._last_id, event.sent_by(self._node, self._last_id).to_json()

    def _run(self) -> None:
        while True:
            with self._changed:
                stopping = self._wait()
                batch = self._take()
                latest, self._latest = list(self._latest.values()), {}
            try:
                self._deliver(batch, latest, now_or_never=stopping)
            except Exception:  # the thread must live: the spool has what was not sent
                log.exception("publishing events failed")
                time.sleep(1.0)
            with self._changed:
                self._in_hand = 0
            if stopping and not self._pending:
                return

    def _wait(self) -> bool:
        """Wait (the lock is held) until there is something to do; True where the agent stops."""
        while not self._stopping:
            if self._pending:
                # The first of a batch waits for company; a full batch goes at once.
                until = time.monotonic() + self._flush_s
                while not self._stopping and len(self._pending) < BATCH:
                    time_left = until - time.monotonic()
                    if time_left <= 0 or not self._changed.wait(time_left):
                        break
                return self._stopping
            if self._latest:
                return False
            retry_in = self._next_try - time.monotonic() if len(self._spool) else 60.0
            if retry_in <= 0:
                return False
            self._changed.wait(retry_in)
        return True

    def _take(self) -> list[tuple[Entry, bool]]:
        batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
        self._pending_bytes -= sum(len(entry[1]) for entry, _ in batch)
        self._in_hand = batch[0][0][0] if batch else 0
        return batch

    def _deliver(
        self, batch: list[tuple[Entry, bool]], latest: list[BaseEvent], *, now_or_never: bool
    ) -> None:
        resting = time.monotonic() < self._next_try and not now_or_never
        if not resting and not len(self._spool) and self._send([text for (_, text), _ in batch], latest):
            return
        self._keep(batch)
        while len(self._spool) and (now_or_never or time.monotonic() >= self._next_try):
            if not self._send(self._spool.peek(BATCH), latest):
                return
            latest = []
            self._spool.advance()
            if self._pending:
                return  # what is new joins the end of the spool first
        # The latest state that came while nothing could be sent is dropped: the next follows in seconds.

    def _send(self, texts: list[bytes], latest: list[BaseEvent]) -> bool:
        for event in latest:
            losses = {"lost": self.lost} if isinstance(event, Heartbeat) else {}
            texts = [*texts, self._encoded(event.model_copy(update=losses))[1]]
        if not texts:
            return True
        try:
            if self._client is None:
                self._client = self._connect()
            if self._unread > self._stream_limit:
                self._unread = int(self._client.xlen(self._stream))
                if self._unread > self._stream_limit:
                    self._next_try = time.monotonic() + 1.0
                    return False
            pipe = self._client.pipeline(transaction=False)
            for text in texts:
                pipe.xadd(self._stream, {"e": text})
            pipe.xlen(self._stream)
            self._unread = int(pipe.execute()[-1])
        except (redis.RedisError, OSError) as error:
            self._failed(str(error))
            return False
        self._succeeded()
        return True

    def _failed(self, reason: str) -> None:
        now = time.monotonic()
        if self._down_since is None:
            self._down_since = now
            log.warning("the broker does not accept events (%s): keeping them on disk", reason)
        if self._client is not None:
            self._client.close()
            self._client = None
        self._failures += 1
        wait_s = min(LONGEST_WAIT_S, 0.1 * 2 ** min(self._failures, 10))
        self._next_try = now + wait_s * random.uniform(0.5, 1.0)

    def _succeeded(self) -> None:
        if self._down_since is not None:
            away_s = time.monotonic() - self._down_since
            log.warning(
                "the broker accepts events again after %.1f s; %d wait on disk", away_s, len(self._spool)
            )
            self._down_since = None
        self._failures = 0
        # A full stream is no failure, but nobody reads it: look again in a second.
        self._next_try = time.monotonic() + 1.0 if self._unread > self._stream_limit else 0.0

    def _keep(self, batch: list[tuple[Entry, bool]]) -> None:
        vital = [entry for entry, is_vital in batch if is_vital]
        bulk = [entry for entry, is_vital in batch if not is_vital]
        try:
            self._spool.append(vital, bulk)
        except OSError as error:
            if not self._disk_refuses:  # once: ten lines a second would help nobody, a full disk least
                log.error("events cannot be kept on disk (%s): holding them in memory", error.strerror)
            self._disk_refuses = True
            with self._changed:
                self._hold(batch)
        else:
            if self._disk_refuses and batch:
                log.warning("events can be kept on disk again; %d were dropped", self.lost)
                self._disk_refuses = False

    def _spill(self) -> None:
        """Move what waits in memory to disk (the lock is held)."""
        batch = list(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        if batch:
            self._keep(batch)

    def _hold(self, batch: list[tuple[Entry, bool]]) -> None:
        """Neither broker nor disk: hold in memory; past the bound drop spans and log lines, oldest first."""
        batch_and_pending = [*batch, *self._pending]
        excess = sum(len(entry[1]) for entry, _ in batch_and_pending) - self._memory_bytes
        self._pending.clear()
        for entry, is_vital in batch_and_pending:
            if excess > 0 and not is_vital:
                excess -= len(entry[1])
                self._lost += 1
            else:
                self._pending.append((entry, is_vital))
        self._pending_bytes = sum(len(entry[1]) for entry, _ in self._pending)
