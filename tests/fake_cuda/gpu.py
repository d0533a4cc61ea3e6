"""The fake device: its streams, what host threads know of them, and every op that they are given."""

import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.fake_cuda.clock import Clock, Op
from tests.fake_cuda.memory import Access, Block, Extent, Fault, Kind, Memory

COPY_BYTES_PER_S = 10e9  # between host and device
OP_BYTES_PER_S = 100e9  # of all that an op reads and writes
LAUNCH_S = 1e-6  # that queueing an op takes its thread; the shortest op lasts as long


@dataclass(slots=True)
class Host:
    """A thread of the host; `current` is its current stream by device."""

    clock: Clock = field(default_factory=Clock)
    current: dict[int, "Stream"] = field(default_factory=dict)
    device: int = 0


@dataclass(frozen=True, slots=True)
class Ran:
    """An op or copy with its virtual begin and end in seconds."""

    name: str
    stream: "Stream"
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor that an op reads, writes, or both."""

    tensor: Tensor
    reads: bool
    writes: bool


class Gpu:
    """`count` devices of `memory_bytes` each.

    Attributes
    ----------
    faults : what was found, each once.
    ran : everything that streams were given, in that order.
    before_use : is told, on the thread of an op, what the op uses, before it is computed.
    """

    def __init__(self, count: int, memory_bytes: int) -> None:
        self.count, self.memory_bytes = count, memory_bytes
        self.lock = threading.RLock()
        self.faults: list[Fault] = []
        self.ran: list[Ran] = []
        self.streams: list[Stream] = []
        self.closed = False
        self.before_use: Callable[[Sequence[Use]], None] = lambda uses: None
        self._memory = Memory(self.report, self._freed)
        self._hosts: list[Host] = []
        self._of_thread = threading.local()
        self._default = [Stream(self, device) for device in range(count)]
        self._used, self.peak_bytes = [0] * count, [0] * count
        self.limit_bytes = [memory_bytes] * count

    @property
    def kinds(self) -> set[Kind]:
        return {fault.kind for fault in self.faults}

    def expect(self, pattern: str) -> None:
        """Some fault reads so (a regular expression). Raises AssertionError with all that were found."""
        texts = [fault.text for fault in self.faults]
        assert any(re.search(pattern, text) for text in texts), texts

    def report(self, kind: Kind, text: str) -> None:
        fault = Fault(kind, text)
        if not self.closed and fault not in self.faults:
            self.faults.append(fault)

    def close(self) -> None:
        """The run ends: somebody must have waited for each stream."""
        with self.lock:
            self._memory.settle_frees()
            for stream in self.streams:
                last = stream.last
                if last is not None and not any(host.clock.knows(last) for host in self._hosts):
                    self.report(Kind.NOT_JOINED, f"the run ends and nobody has waited for {last.label}")
            self.closed = True

    # Host threads and streams.

    @property
    def host(self) -> Host:
        """The calling thread."""
        if not hasattr(self._of_thread, "host"):
            self._of_thread.host = Host()
            self._hosts.append(self._of_thread.host)
        own_host: Host = self._of_thread.host
        return own_host

    def number_of(self, device: Any = None) -> int:
        """The number of a device as torch.cuda takes it; the thread's current one where it has none."""
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return self.host.device if index is None else index

    def current_stream(self, device: Any = None) -> "Stream":
        number = self.number_of(device)
        return self.host.current.get(number, self._default[number])

    def set_stream(self, stream: "Stream") -> None:
        self.host.current[stream.device] = stream

    # Memory.

    def allocate(self, tensor: Tensor, device: int | None) -> Block | None:
        """Make a new tensor's memory that of a device, or pinned memory (None); an empty tensor has none.

        Raises torch.OutOfMemoryError.
        """
        storage = tensor.untyped_storage()
        first, size = storage.data_ptr(), storage.nbytes()
        if size == 0:
            return None
        block = Block(Extent(first, first + size), device)
        with self.lock:
            self._memory.settle_frees()
            if device is None:
                return self._memory.add(storage, block, lambda: self.host.clock)
            if self._used[device] + size > self.limit_bytes[device]:
                raise torch.OutOfMemoryError(f"the fake GPU {device} has no {size:,} bytes left")
            self._used[device] += size
            self.peak_bytes[device] = max(self.peak_bytes[device], self._used[device])
            stream = self.current_stream(device)
            block.stream, block.clock = stream.number, stream.clock
            return self._memory.add(storage, block, lambda: self.host.clock)

    def forget_peak(self, device: int) -> None:
        """From now on the peak is the most memory in use since now."""
        with self.lock:
            self._memory.settle_frees()
            self.peak_bytes[device] = self._used[device]

    def free_and_all_bytes(self, device: int) -> tuple[int, int]:
        """What is free of a device's memory, and all of it."""
        with self.lock:
            self._memory.settle_frees()
            return self.memory_bytes - self._used[device], self.memory_bytes

    def pin(self, address: int, size: int) -> None:
        """Memory that is there already is pinned from now on."""
        with self.lock:
            self._memory.insert(Block(Extent(address, address + size)))

    def block_of(self, tensor: Tensor) -> Block | None:
        """The memory of the device, or pinned memory, in which a tensor lies."""
        with self.lock:
            return self._memory.at(tensor.untyped_storage().data_ptr())

    def record_stream(self, tensor: Tensor, stream: "Stream") -> None:
        """The memory is not given to another tensor before what `stream` has now is done."""
        block = self.block_of(tensor)
        assert block is not None, "record_stream of a tensor that is not on a GPU"
        block.recorded.append(stream.clock)

    def _freed(self, block: Block) -> None:
        if block.device is not None:
            self._used[block.device] -= block.extent.last - block.extent.first

    # Ops.

    def launch(
        self,
        name: str,
        stream: "Stream",
        uses: Sequence[Use],
        ready: Sequence[Block] = (),
        *,
        rate: float = OP_BYTES_PER_S,
    ) -> None:
        """Queue an op that uses some tensors and fills blocks that were just `made` for it."""
        with self.lock:
            self._memory.settle_frees()
            clock = stream.clock
            clock.join(self.host.clock)
            begin = clock.seconds
            extents = [Extent.of(use.tensor) for use in uses] + [block.extent for block in ready]
            clock.seconds += max(LAUNCH_S, sum(extent.last - extent.first for extent in extents) / rate)
            self.host.clock.seconds += LAUNCH_S
            op = stream.next_op(
                f"{name} on {stream} (thread {threading.current_thread().name})", self.host.clock
            )
            self.ran.append(Ran(name, stream, begin, clock.seconds))
            for use, extent in zip(uses, extents, strict=False):
                if block := self.block_of(use.tensor):
                    self._memory.use(block, Access(op, extent, use.writes), clock, reads=use.reads)
            for block in ready:
                block.accesses.append(Access(op, block.extent, writes=True))

    def wait_for(self, clock: Clock) -> None:
        """The calling thread waits until all of `clock` is done."""
        with self.lock:
            self._memory.settle_frees()
            self.host.clock.join(clock)

    def host_uses(self, extent: Extent, *, writes: bool) -> None:
        """The calling thread reads or writes memory that may be pinned."""
        with self.lock:
            who = f"the host (thread {threading.current_thread().name})"
            self._memory.host_use(extent, self.host.clock, writes=writes, who=who)

    def host_reads(self, memory: Any) -> None:
        """The calling thread, or another process on its word, reads a buffer past torch."""
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        self.host_uses(Extent(address, address + len(memory)), writes=False)


class Stream:
    """Stands in for torch.cuda.Stream."""

    def __init__(self, gpu: Gpu, device: Any = None, priority: int = 0) -> None:
        self._gpu, self.device, self.priority = gpu, gpu.number_of(device), priority
        self.clock = Clock()
        self.last: Op | None = None
        maker = sys._getframe(1).f_code.co_qualname.partition(".<locals>")[0]
        with gpu.lock:
            self.number = len(gpu.streams)
            gpu.streams.append(self)
        default = self.number < gpu.count
        self._name = (
            f"the default stream of GPU {self.device}" if default else f"stream {self.number} of {maker}"
        )

    def __str__(self) -> str:
        return self._name

    def next_op(self, label: str, host: Clock) -> Op:
        """Count an op that is queued now."""
        number = self.clock.done.get(self.number, 0) + 1
        self.clock.done[self.number] = number
        self.last = Op(self.number, number, label, host)
        return self.last

    def wait_stream(self, other: "Stream") -> None:
        with self._gpu.lock:
            self.clock.join(other.clock)

    def wait_event(self, event: "Event") -> None:
        with self._gpu.lock:
            self.clock.join(event.clock)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event(self._gpu)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._gpu.wait_for(self.clock)


class Event:
    """Stands in for torch.cuda.Event."""

    def __init__(self, gpu: Gpu, enable_timing: bool = False, blocking: bool = False) -> None:
        self._gpu, self._timed = gpu, enable_timing
        self.clock = Clock()

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self._gpu.current_stream()
        with self._gpu.lock:
            self.clock = stream.clock.copy()
            self.clock.join(self._gpu.host.clock)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self._gpu.current_stream()).wait_event(self)

    def query(self) -> bool:
        """Whether it was reached by the virtual time of the calling thread, which then knows it."""
        reached = self.clock.seconds <= self._gpu.host.clock.seconds
        if reached:
            self.synchronize()
        return reached

    def synchronize(self) -> None:
        self._gpu.wait_for(self.clock)

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from this event to `end`. Raises RuntimeError, as CUDA, where one is not reached."""
        if not (self._timed and end._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        for event in (self, end):
            if event.clock.seconds > self._gpu.host.clock.seconds:
                raise RuntimeError("device not ready: nobody has waited for the event")
        return (end.clock.seconds - self.clock.seconds) * 1e3
