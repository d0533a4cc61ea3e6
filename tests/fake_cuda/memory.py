"""Memory of the fake device and pinned memory of the host: who uses which bytes, and whether too early."""

import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch import Tensor

from tests.fake_cuda.clock import Clock, Op


class Kind(Enum):
    """The faults that are found."""

    TOO_EARLY = "an op starts before the copy or op whose result it needs"
    REUSED = "memory is overwritten or given back while a stream may still use it"
    NOT_JOINED = "the host uses a result, or the run ends, and nobody has waited for the stream"
    DEADLOCK = "sends and receives wait for each other"


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Extent:
    """Addresses `first` to before `last`."""

    first: int
    last: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Extent":
        """The span of a tensor's elements: with gaps between them, the gaps too."""
        if tensor.numel() == 0:
            return cls(0, 0)
        reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        return cls(tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.itemsize)

    def meets(self, other: "Extent") -> bool:
        return self.first < other.last and other.first < self.last

    def covers(self, other: "Extent") -> bool:
        return self.first <= other.first and other.last <= self.last


@dataclass(frozen=True, slots=True)
class Access:
    """One op's use of an extent."""

    op: Op
    extent: Extent
    writes: bool


@dataclass(slots=True)
class Block:
    """One piece of memory.

    device : the number of the device that it is on; None: pinned memory of the host.
    stream, clock : of the stream on which it was allocated.  recorded : clocks of the streams that
        `record_stream` named.
    before : the last op on `stream` that may still use what was here before.
    """

    extent: Extent
    device: int | None = None
    stream: int | None = None
    clock: Clock | None = None
    recorded: list[Clock] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    before: Op | None = None
    storage: Any = None


class Memory:
    """All registered memory; to be called under one lock.

    report : takes each fault.  freed : is told of each block that was given back.
    """

    def __init__(self, report: Callable[[Kind, str], None], freed: Callable[[Block], None]) -> None:
        self._report, self._freed = report, freed
        self._starts: list[int] = []
        self._blocks: dict[int, Block] = {}
        self._gone: deque[tuple[Block, Clock]] = deque()
        self._pending: dict[int, Op] = {}  # by stream: the last op that uses memory which was given back

    def add(self, storage: Any, block: Block, host: Callable[[], Clock]) -> Block:
        """Register the memory of a storage; `host` gives the clock of the thread that frees it."""
        if block.stream is not None:
            block.before = self._pending.get(block.stream)
        # A callback may come in the middle of anything, so it only notes; `settle_frees` does the work.
        block.storage = weakref.ref(storage, lambda _: self._gone.append((block, host().copy())))
        self.insert(block)
        return block

    def insert(self, block: Block) -> None:
        """Register a block."""
        if block.extent.first not in self._blocks:
            insort(self._starts, block.extent.first)
        self._blocks[block.extent.first] = block

    def at(self, address: int) -> Block | None:
        """The block in which an address lies."""
        self.settle_frees()
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        block = self._blocks[self._starts[place]]
        return block if address < block.extent.last else None

    def use(self, block: Block, access: Access, clock: Clock, *, reads: bool) -> None:
        """An op uses memory once `clock` is reached; `reads`: it needs what is there."""
        op, overwrites = access.op, access.writes and not reads
        if block.before and op.stream != block.stream and not clock.knows(block.before):
            self._report(Kind.REUSED, f"{op.label} uses memory that {block.before.label} may still use")
        blocks = []
        for earlier in block.accesses:
            if not access.extent.meets(earlier.extent):
                blocks.append(earlier)
                continue
            matters = (earlier.writes or access.writes) and op.stream != earlier.op.stream
            if matters and not clock.knows(earlier.op):
                self._report_use(op.label, earlier, overwrites)
            ends = access.extent.covers(earlier.extent) and (
                access.writes or (op.stream == earlier.op.stream and not earlier.writes)
            )
            if not ends:
                blocks.append(earlier)
        block.accesses = [*blocks, access]

    def host_use(self, extent: Extent, clock: Clock, *, writes: bool, who: str) -> None:
        """A host thread with this clock reads or writes what may be pinned memory."""
        block = self.at(extent.first)
        for earlier in block.accesses if block else ():
            if not extent.meets(earlier.extent) or clock.knows(earlier.op):
                continue
            if writes:
                self._report(Kind.REUSED, f"{who} writes to memory that {earlier.op.label} may still use")
            elif earlier.writes:
                self._report(Kind.NOT_JOINED, f"{who} reads what {earlier.op.label} may still write")

    def settle_frees(self) -> None:
        """Take out what was given back since the last call, and judge whether it was too early."""
        while self._gone:
            block, host = self._gone.popleft()
            if self._blocks.get(block.extent.first) is block:
                del self._blocks[block.extent.first]
                del self._starts[bisect_right(self._starts, block.extent.first) - 1]
            self._freed(block)
            for access in block.accesses:
                self._judge_free(block, access.op, host)

    def _judge_free(self, block: Block, op: Op, host: Clock) -> None:
        # Who queued the op has dropped the memory before it was given back: what it waited for counts, too.
        if host.knows(op) or op.host.knows(op):
            return
        if op.stream == block.stream:
            # Torch gives the memory to the next tensor of the same stream at once, which is in order there.
            last = self._pending.get(op.stream)
            if last is None or last.number < op.number:
                self._pending[op.stream] = op
        elif not any(clock.knows(op) for clock in (block.clock, *block.recorded) if clock):
            what = "pinned memory" if block.device is None else "device memory"
            self._report(Kind.REUSED, f"{what} is given back while {op.label} may still use it")

    def _report_use(self, label: str, earlier: Access, overwrites: bool) -> None:
        if earlier.writes and not overwrites:
            self._report(Kind.TOO_EARLY, f"{label} does not wait for {earlier.op.label}")
        else:
            self._report(Kind.REUSED, f"{label} overwrites what {earlier.op.label} may still use")
