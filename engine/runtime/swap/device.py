"""The devices that a worker swaps through: the host's own memory, an emulated GPU, CUDA.

All do the same with real tensors in buffers of their own. `emulated` makes ops last as long as the profile
says and copies as long as bytes / rate. `cuda` copies from pinned memory on streams of its own beside the one
that computes; it is experimental: it has never run on a GPU.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Device(Protocol):
    """Where a worker computes. Copies are called from threads of their own, one for each direction."""

    name: torch.device

    def host_buffer(self, numbers: int, dtype: torch.dtype) -> Tensor:
        """Host memory from which the device loads fast."""

    def copy_in(self, source: Tensor, into: Tensor) -> None:
        """Fill a device buffer from the host; returns when it is there."""

    def copy_out(self, source: Tensor) -> Tensor:
        """The bytes of a device buffer on the host; returns when they are there."""

    def end(self, start: float, lasts_s: float) -> float:
        """Wait until an op that began at `start` is over; returns when that was (time.monotonic())."""


class CpuDevice:
    """The host computes; ops and copies take what they take."""

    name = torch.device("cpu")

    def host_buffer(self, numbers: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numbers, dtype=dtype)

    def copy_in(self, source: Tensor, into: Tensor) -> None:
        into.copy_(source)

    def copy_out(self, source: Tensor) -> Tensor:
        return source

    def end(self, start: float, lasts_s: float) -> float:
        return time.monotonic()


class EmulatedDevice(CpuDevice):
    """Really computes and copies, but takes the time of the profile and of `bytes_per_s` per direction.

    overrun : called with the seconds by which an op's real computation outlasted its profile.
    """

    def __init__(self, bytes_per_s: float, overrun: Callable[[float], None]) -> None:
        self._bytes_per_s, self._overrun = bytes_per_s, overrun

    def copy_in(self, source: Tensor, into: Tensor) -> None:
        start = time.monotonic()
        into.copy_(source)
        _sleep_until(start + source.nbytes / self._bytes_per_s)

    def copy_out(self, source: Tensor) -> Tensor:
        start = time.monotonic()
        _sleep_until(start + source.nbytes / self._bytes_per_s)
        return source

    def end(self, start: float, lasts_s: float) -> float:
        late = _sleep_until(start + lasts_s)
        if late > 0:
            self._overrun(late)
        return time.monotonic()


class CudaDevice:
    """A CUDA device: pinned host memory, a stream for each direction of copies. Experimental: never run.

    A copy's thread waits for its stream, and an op's end for the computing stream, so that what is handed
    from one to the other is there; nothing else orders the streams.
    """

    def __init__(self, index: int) -> None:
        self.name = torch.device("cuda", index)
        torch.cuda.set_device(self.name)
        self._streams = threading.local()

    def host_buffer(self, numbers: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numbers, dtype=dtype, pin_memory=True)

    def copy_in(self, source: Tensor, into: Tensor) -> None:
        self._copy(source, into)

    def copy_out(self, source: Tensor) -> Tensor:
        into = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        self._copy(source, into)
        return into

    def end(self, start: float, lasts_s: float) -> float:
        torch.cuda.current_stream(self.name).synchronize()
        return time.monotonic()

    def _copy(self, source: Tensor, into: Tensor) -> None:
        if not hasattr(self._streams, "own"):
            self._streams.own = torch.cuda.Stream(self.name)
        stream = self._streams.own
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)
        stream.synchronize()


def _sleep_until(moment: float) -> float:
    """Sleep until a moment of time.monotonic(); returns by how many seconds it had passed already."""
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
    return -left
