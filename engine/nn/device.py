"""What a rank computes on: the host itself, an emulated GPU, a CUDA device.

All do the same with real tensors. `emulated` makes ops last as long as the profile says, and a swap worker's
copies as long as bytes / rate. `cuda` runs ops on its current stream and copies on streams of their own,
through pinned memory (docs/gpu.md says what ran where).
"""

import ctypes
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from engine.errors import InputError
from engine.model.memory import CUDA_CONTEXT_BYTES

# When something is done on a device: seconds of time.monotonic(), or an event that a GPU comes to later.
Moment = Any
Shape = int | tuple[int, ...]
Side = Literal["previous", "next"]  # the stage from which a message came
Tell = Callable[[float, float], None]

HIGH_PRIORITY, LOW_PRIORITY = -1, 0  # of streams, as CUDA counts them


class Device(Protocol):
    """Where a rank computes. `copy_in` and `copy_out` are called from threads of their own, one a direction.

    Attributes
    ----------
    apart : the device has memory of its own, so that what the host is to send must be fetched first.
    """

    name: torch.device
    apart: bool

    def host_buffer(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Host memory from which the device loads fast; what is in it is undefined."""

    def pin(self, memory: mmap.mmap) -> None:
        """Have host memory that is there already copied as fast as a `host_buffer`, while it is mapped."""

    def copy_in(self, source: Tensor, into: Tensor) -> None:
        """Fill a device buffer from the host; returns when it is there."""

    def copy_out(self, source: Tensor) -> Tensor:
        """The bytes of a device buffer on the host; returns when they are there."""

    def load(self, source: Tensor, side: Side) -> Tensor:
        """A message on the device. Later ops find it there; ops under way go on beside the copy.

        One that is there already, for the ops that follow, is returned as it is.
        """

    def now(self) -> Moment:
        """The moment at which all ops so far are done; does not wait for it."""

    def begin(self, since: float) -> Moment:
        """The moment at which the next op begins, whose inputs are there `since` (time.monotonic())."""

    def end(self, start: Moment, lasts_s: float | None) -> Moment:
        """The moment at which an op that began at `start`, and by its profile lasts so long, is over."""

    def reach(self, moment: Moment) -> None:
        """Wait for a moment."""

    def tell(self, start: Moment, end: Moment, to: Tell) -> None:
        """Give two moments as seconds of time.monotonic(): at once, or at the next `settle`."""

    def settle(self) -> None:
        """Wait until all ops so far are done."""

    def peak_bytes(self) -> int | None:
        """Most memory of its own that tensors of this process took at once; None where it has none."""


class CpuDevice:
    """The host computes; ops and copies take what they take."""

    name = torch.device("cpu")
    apart = False

    def host_buffer(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def pin(self, memory: mmap.mmap) -> None:
        """The host copies from all of its memory alike."""

    def copy_in(self, source: Tensor, into: Tensor) -> None:
        into.copy_(source)

    def copy_out(self, source: Tensor) -> Tensor:
        return source

    def load(self, source: Tensor, side: Side) -> Tensor:
        return source

    def now(self) -> Moment:
        return time.monotonic()

    def begin(self, since: float) -> Moment:
        return time.monotonic()

    def end(self, start: Moment, lasts_s: float | None) -> Moment:
        return time.monotonic()

    def reach(self, moment: Moment) -> None:
        """Ops return when they are done."""

    def tell(self, start: Moment, end: Moment, to: Tell) -> None:
        to(start, end)

    def settle(self) -> None:
        """Ops return when they are done."""

    def peak_bytes(self) -> int | None:
        return None


class EmulatedDevice(CpuDevice):
    """Really computes and copies, but takes the time of the profile and of `bytes_per_s` per direction.

    An op begins when the emulated GPU would begin it: once its inputs are there and the op before is over.
    The host, which has to wake for either, comes a little later; it has until the op's end to make up for it.

    overrun : called with the seconds by which the real computation of an op was over later than the op.
    """

    def __init__(self, overrun: Callable[[float], None], bytes_per_s: float = float("inf")) -> None:
        self._bytes_per_s, self._overrun = bytes_per_s, overrun
        self._free = float("-inf")  # since when no op runs

    def copy_in(self, source: Tensor, into: Tensor) -> None:
        start = time.monotonic()
        into.copy_(source)
        _sleep_until(start + source.nbytes / self._bytes_per_s)

    def copy_out(self, source: Tensor) -> Tensor:
        start = time.monotonic()
        _sleep_until(start + source.nbytes / self._bytes_per_s)
        return source

    def begin(self, since: float) -> Moment:
        return max(since, self._free)

    def end(self, start: Moment, lasts_s: float | None) -> Moment:
        assert lasts_s is not None, "every op of an emulated device has a profile"
        self._free = start + lasts_s
        late = _sleep_until(self._free)
        if late > 0:
            self._overrun(late)
            self._free = time.monotonic()
        return self._free


class CudaDevice:
    """CUDA device number `index` of this machine, of whose memory this is one of `ranks` equal parts.

    Ops go to the current stream of the calling thread and return before they are done. In the thread that
    makes the device, that stream has high priority; kernels of prefill have a low one and give way.
    Nothing else orders the streams: a thread that copies waits for its own stream, a thread that fetches what
    ops make first reaches the moment at which they are done, and ops after a `load` wait for its copy.
    """

    apart = True

    def __init__(self, index: int, ranks: int = 1) -> None:
        self.name = torch.device("cuda", index)
        torch.cuda.set_device(self.name)
        if ranks > 1:
            whole = torch.cuda.get_device_properties(self.name).total_memory
            torch.cuda.set_per_process_memory_fraction(share_of_memory(whole, ranks), self.name)
        torch.cuda.set_stream(torch.cuda.Stream(self.name, priority=HIGH_PRIORITY))
        self._of_thread = threading.local()
        self._loading: deque[tuple[Moment, Tensor]] = deque()
        self._loads = {side: torch.cuda.Stream(self.name) for side in ("previous", "next")}
        self._untold: list[tuple[torch.cuda.Event, torch.cuda.Event, Tell]] = []

    def host_buffer(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def pin(self, memory: mmap.mmap) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        runtime = torch.cuda.cudart()
        torch.cuda.check_error(int(runtime.cudaHostRegister(address, len(memory), 0)))

    def copy_in(self, source: Tensor, into: Tensor) -> None:
        self._copy(source, into)

    def copy_out(self, source: Tensor) -> Tensor:
        into = self.host_buffer(tuple(source.shape), source.dtype)
        self._copy(source, into)
        return into

    def load(self, source: Tensor, side: Side) -> Tensor:
        if source.device == self.name:
            return source
        with torch.cuda.stream(self._loads[side]):
            loaded = source.to(self.name, non_blocking=True)
            copied = self.now()
        # Its memory is given away once nobody refers to it: not before the copy is done.
        self._loading.append((copied, source))
        while len(self._loading) > 1 and self._loading[0][0].query():
            self._loading.popleft()
        ops = torch.cuda.current_stream(self.name)
        ops.wait_stream(self._loads[side])
        loaded.record_stream(ops)  # its memory is another stream's: it is not given away under an op's feet
        return loaded

    def now(self) -> Moment:
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(torch.cuda.current_stream(self.name))
        return event

    def begin(self, since: float) -> Moment:
        return self.now()

    def end(self, start: Moment, lasts_s: float | None) -> Moment:
        return self.now()

    def reach(self, moment: Moment) -> None:
        moment.synchronize()

    def tell(self, start: Moment, end: Moment, to: Tell) -> None:
        self._untold.append((start, end, to))

    def settle(self) -> None:
        """Wait until all ops so far are done, then tell when they were: by events, from one that is now."""
        here = self.now()
        here.synchronize()
        here_s = time.monotonic()
        for start, end, to in self._untold:
            to(here_s - start.elapsed_time(here) / 1e3, here_s - end.elapsed_time(here) / 1e3)
        self._untold.clear()

    def peak_bytes(self) -> int | None:
        return int(torch.cuda.max_memory_allocated(self.name))

    def _copy(self, source: Tensor, into: Tensor) -> None:
        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = torch.cuda.Stream(self.name)
        stream = self._of_thread.stream
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)
        stream.synchronize()


def share_of_memory(whole_bytes: float, ranks: int) -> float:
    """The share of a GPU's memory that the tensors of each of `ranks` processes on it may take.

    Raises InputError where the processes alone take all of it.
    """
    left = whole_bytes / ranks - CUDA_CONTEXT_BYTES
    if left <= 0:
        most = int(whole_bytes / CUDA_CONTEXT_BYTES)
        raise InputError(
            "device.ranks_per_gpu", ranks, f"at most {most} on a GPU of {whole_bytes / 1e9:.0f} GB"
        )
    return left / whole_bytes


def device_of(kind: str, index: int, *, ranks: int, overrun: Callable[[float], None]) -> Device:
    """The device of a rank: `kind` as a job names it, CUDA device `index`, which so many `ranks` share.

    overrun : called with the seconds by which the computation of an emulated op was over later than the op.
    """
    if kind == "cuda":
        return CudaDevice(index, ranks)
    return EmulatedDevice(overrun) if kind == "emulated" else CpuDevice()


def _sleep_until(moment: float) -> float:
    """Sleep until a moment of time.monotonic(); returns by how many seconds it had passed already."""
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
    return -left
