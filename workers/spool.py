"""Events that could not be sent yet, on disk: in order, bounded, and still there after a restart.

Two queues of text lines: what must never be lost (states of ranks, steps, results), and what is bulky
and can be (spans, log lines). Only the second has a bound; past it, its oldest part is dropped and counted.
A queue is a folder of segments of about 1 MB, written at the newest and read at the oldest. Lines reach the
operating system before `append` returns, so they survive the agent's death, not a power cut.

A crash while reading repeats at most the oldest segment: events are delivered at least once.
"""

import contextlib
import heapq
import os
import threading
from collections import deque
from pathlib import Path

from engine.private import private

SEGMENT_BYTES = 1024 * 1024

Entry = tuple[int, bytes]  # (id, which grows; the event's JSON, without line breaks)


class SegmentQueue:
    """A first-in-first-out queue of entries in one folder, by one process, not locked.

    Parameters
    ----------
    limit_bytes : past it the oldest segment is dropped and its entries counted in `dropped`; None: no bound.
    """

    def __init__(self, folder: Path, limit_bytes: int | None, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self.dropped = 0
        self._limit = limit_bytes
        self._segment_bytes = segment_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._segments: deque[_Segment] = deque(
            _Segment.found(path) for path in sorted(folder.glob("*.jsonl"))
        )
        self._number = max((int(s.path.stem) for s in self._segments), default=0)

    def __len__(self) -> int:
        return sum(segment.left for segment in self._segments)

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segment in self._segments)

    def append(self, entries: list[Entry]) -> None:
        """Write the entries at the end. Raises OSError where the disk refuses; then none of them is in."""
        if not entries:
            return
        if not self._segments or self._segments[-1].size >= self._segment_bytes:
            self._number += 1
            self._segments.append(_Segment(self.folder / f"{self._number:012d}.jsonl"))
        self._segments[-1].write(entries)
        while self._limit is not None and self.bytes > self._limit and len(self._segments) > 1:
            oldest = self._segments.popleft()
            self.dropped += oldest.left
            oldest.path.unlink(missing_ok=True)

    def peek(self, most: int) -> list[Entry]:
        """Return up to `most` of the oldest entries, which stay until `advance`."""
        entries: list[Entry] = []
        for segment in self._segments:
            entries += segment.read(most - len(entries))
            if len(entries) >= most:
                break
        return entries

    def advance(self, count: int) -> None:
        """Forget the oldest `count` entries."""
        while count > 0 and self._segments:
            head = self._segments[0]
            step = min(count, head.left)
            head.skip(step)
            count -= step
            if head.left == 0:
                self._segments.popleft()
                head.path.unlink(missing_ok=True)


class _Segment:
    """One file of a queue: how much of it is written and how much is read."""

    __slots__ = ("left", "offset", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.offset = 0
        self.left = 0

    @classmethod
    def found(cls, path: Path) -> "_Segment":
        """Take over a file of an earlier life; a last line that was cut off is cut away."""
        segment = cls(path)
        with path.open("r+b") as file:
            for line in file:
                if line.endswith(b"\n"):
                    segment.size += len(line)
                    segment.left += 1
            file.truncate(segment.size)
        return segment

    def write(self, entries: list[Entry]) -> None:
        data = b"".join(b"%d %s\n" % entry for entry in entries)
        with open(self.path, "ab", buffering=0, opener=private) as file:
            count = 0
            try:
                while count < len(data):
                    count += file.write(data[count:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), self.size)
                raise
        self.size += len(data)
        self.left += len(entries)

    def read(self, most: int) -> list[Entry]:
        entries: list[Entry] = []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while len(entries) < min(most, self.left):
                number, _, text = file.readline().rstrip(b"\n").partition(b" ")
                entries.append((int(number), text))
        return entries

    def skip(self, count: int) -> None:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for _ in range(count):
                file.readline()
            self.offset = file.tell()
        self.left -= count


class Spool:
    """The two queues of a node, read as one in the order of their ids; safe between threads.

    Parameters
    ----------
    folder : made if missing; what an earlier process left there comes first.
    limit_bytes : bound of the bulky queue.
    """

    def __init__(self, folder: Path, limit_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._lock = threading.Lock()
        self._vital = SegmentQueue(folder / "vital", None, segment_bytes)
        self._bulk = SegmentQueue(folder / "bulk", limit_bytes, min(segment_bytes, max(1, limit_bytes // 8)))
        self._peeked: tuple[int, int, int] | None = (
            None  # (vital, bulk) entries handed out, bulk.dropped then
        )

    def __len__(self) -> int:
        with self._lock:
            return len(self._vital) + len(self._bulk)

    @property
    def dropped(self) -> int:
        """Bulky events dropped since the start, because their bound was reached."""
        return self._bulk.dropped

    def append(self, vital: list[Entry], bulk: list[Entry]) -> None:
        """Keep both. Raises OSError where the disk refuses; vital entries are tried first."""
        with self._lock:
            self._vital.append(vital)
            self._bulk.append(bulk)

    def peek(self, most: int) -> list[bytes]:
        """Return the JSON of up to `most` of the oldest events; `advance` forgets exactly these."""
        with self._lock:
            vital, bulk = self._vital.peek(most), self._bulk.peek(most)
            entries_in_order = list(heapq.merge(((e, 0) for e in vital), ((e, 1) for e in bulk)))[:most]
            from_bulk = sum(source for _, source in entries_in_order)
            self._peeked = (len(entries_in_order) - from_bulk, from_bulk, self._bulk.dropped)
            return [text for (_, text), _ in entries_in_order]

    def advance(self) -> None:
        """Forget what the last `peek` returned: it was delivered."""
        with self._lock:
            if self._peeked is None:
                return
            vital, bulk, dropped_then = self._peeked
            self._peeked = None
            self._vital.advance(vital)
            # What was dropped meanwhile came from the same end of the queue.
            self._bulk.advance(max(0, bulk - (self._bulk.dropped - dropped_then)))
