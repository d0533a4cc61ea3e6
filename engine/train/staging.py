"""Sends and sums tensors of a device with its own memory through host memory."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engine.nn.device import Device, Moment
from engine.train.exchange import Key, Outgoing, Passage, Sent, Summing


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A message that is still to be fetched."""

    future: "Future[Sent]"

    def wait(self) -> Passage:
        return self.future.result().wait()


class StagedOutgoing(Outgoing):
    """Sends through host memory, in parallel with the ops, in the order of the calls.

    The thread has a stream for its copies on a GPU: one for each way on which something is sent.
    """

    def __init__(self, outgoing: Outgoing, device: Device) -> None:
        self._outgoing, self._device = outgoing, device
        self._thread = ThreadPoolExecutor(1, "send")

    def begin(self, iteration: int) -> None:
        self._thread.submit(self._outgoing.begin, iteration).result()

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> Sent:
        # Not `ready`: it may have been made contiguous since.
        return _Fetched(self._thread.submit(self._send, key, tensor, self._device.now()))

    def _send(self, key: Key, tensor: Tensor, ready: Moment) -> Sent:
        self._device.reach(ready)
        fetched = self._device.copy_out(tensor)
        return self._outgoing.send(key, fetched, time.monotonic())


class StagedSums:
    """A group that sums tensors of a device in host memory: fetched, summed, put back, one after the other.

    group : sums flat tensors of the host in place (gloo, engine.train.ring); gloo also to or from one rank.
    """

    def __init__(self, group: Any, device: Device) -> None:
        self._group, self._device = group, device
        self.for_one = sums_for_one(group)
        self._thread = ThreadPoolExecutor(1, "sums")

    def allreduce(self, tensors: list[Tensor]) -> Summing:
        """Begin to sum a flat tensor in place, as it is once the ops so far are done."""
        return self._begin(tensors, self._group.allreduce)

    def reduce(self, tensors: list[Tensor], options: Any) -> Summing:
        """Begin to sum a flat tensor in place, for the rank that torch's ReduceOptions name."""
        return self._begin(tensors, lambda host: self._group.reduce(host, options))

    def broadcast(self, tensors: list[Tensor], options: Any) -> Summing:
        """Begin to copy a flat tensor of the rank that torch's BroadcastOptions name to all others."""
        return self._begin(tensors, lambda host: self._group.broadcast(host, options))

    def _begin(self, tensors: list[Tensor], operate: Callable[[list[Tensor]], Any]) -> Summing:
        (tensor,) = tensors
        return Summing(self._thread.submit(self._through_host, tensor, self._device.now(), operate))

    def _through_host(self, tensor: Tensor, ready: Moment, operate: Callable[[list[Tensor]], Any]) -> None:
        self._device.reach(ready)
        host = self._device.copy_out(tensor)
        operate([host]).wait()
        self._device.copy_in(host, tensor)


def sums_for_one(group: Any) -> bool:
    """Whether a group can sum for one of its ranks alone, as torch's do: those over the transport cannot."""
    return group.for_one if isinstance(group, StagedSums) else hasattr(group, "reduce")


def staging(device: Device) -> Callable[[Outgoing], Outgoing]:
    """Wraps an outgoing hop of the host for tensors of the device."""
    return (lambda outgoing: StagedOutgoing(outgoing, device)) if device.apart else lambda outgoing: outgoing
