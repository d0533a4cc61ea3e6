"""Transfers between two GPUs, next to the ops: on a stream of their own, and the host waits for none."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.nn.device import HIGH_PRIORITY


class Transfer(Protocol):
    """A transfer that has begun."""

    def join(self) -> None:
        """Have the ops that come next find it over."""

    def wait(self) -> tuple[float, float]:
        """Block until it is over; returns its start and end in seconds of time.monotonic()."""


class Lane(Protocol):
    """Transfers that go one after the other, in parallel with the ops and with those of other lanes."""

    def begin(self, tensor: Tensor, move: Callable[[], Any]) -> Transfer:
        """Begin a transfer from or into `tensor`, once the ops so far are done.

        move : gives it to torch; returns torch's Work.
        """


class CudaTransfer:
    """A transfer between two events. `idle` is a stream on which nothing ever runs."""

    def __init__(self, start: torch.cuda.Event, end: torch.cuda.Event, idle: torch.cuda.Stream) -> None:
        self._start, self._end, self._idle = start, end, idle

    def join(self) -> None:
        torch.cuda.current_stream(self._idle.device).wait_event(self._end)

    def wait(self) -> tuple[float, float]:
        self._end.synchronize()
        now = _event(self._idle)  # reached at once: nothing is before it
        now.synchronize()
        now_s = time.monotonic()
        return now_s - self._start.elapsed_time(now) / 1e3, now_s - self._end.elapsed_time(now) / 1e3


class CudaLane:
    """Transfers of one link by NCCL, on a CUDA device.

    NCCL queues each behind what is on the lane's stream at that moment, on a stream of its own. Its `wait`
    has the lane's stream wait for that one, not the host.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY)
        self._idle = torch.cuda.Stream(device)

    def begin(self, tensor: Tensor, move: Callable[[], Any]) -> CudaTransfer:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            start = _event(self._stream)
            move().wait()
            end = _event(self._stream)
        tensor.record_stream(self._stream)  # its memory is the ops': it is not given away before the end
        return CudaTransfer(start, end, self._idle)


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True, blocking=True)
    event.record(stream)
    return event
