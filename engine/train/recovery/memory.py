"""The state of one rank after each of its last two steps, in memory that outlives its process.

The memory is a file without a name that the host has open. A slot's header is written after its tensors: a
rank that is killed while it writes leaves the slot void, and the other one as it was.
"""

import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from engine.nn.device import Device
from engine.train.optimizer import MOMENTS, Optimizer

SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What is stored with the tensors of a slot.

    step : steps done. resumed_from : the step of the checkpoint with which the run began, if it did.
    square_sum, loss : this stage's part of the step's totals, should they have to be told again.
    """

    step: int
    resumed_from: int | None
    square_sum: float
    loss: float

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<8sqqdd24x")  # magic, step, resumed from, sums; 64 bytes
    MAGIC: ClassVar[bytes] = b"MERIDMEM"

    def pack(self) -> bytes:
        """The header as it lies in the slot."""
        began = -1 if self.resumed_from is None else self.resumed_from
        return self.LAYOUT.pack(self.MAGIC, self.step, began, self.square_sum, self.loss)

    @classmethod
    def unpack(cls, data: bytes) -> Self | None:
        """The header in `data`; None where the slot is void."""
        if len(data) < cls.LAYOUT.size:
            return None
        magic, step, began, square_sum, loss = cls.LAYOUT.unpack(data)
        if magic != cls.MAGIC:
            return None
        resumed_from = None if began < 0 else began
        return cls(step=step, resumed_from=resumed_from, square_sum=square_sum, loss=loss)


def new_memory(rank: int) -> int:
    """The file descriptor of empty memory for a rank."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"rank-{rank}")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def held(fd: int) -> tuple[int, ...]:
    """The steps after which the state lies in this memory, read by another process than the rank's."""
    size = os.fstat(fd).st_size // SLOTS
    headers = [Header.unpack(os.pread(fd, Header.LAYOUT.size, slot * size)) for slot in range(SLOTS)]
    return tuple(sorted(header.step for header in headers if header))


class Memory:
    """A rank's view of its memory.

    Parameters
    ----------
    parameters : of the stage, in an order that its replicas share.
    optimizer : AdamW of them, or of this rank's shards of them; what it steps has moments.
    device : where the parameters are.
    """

    def __init__(
        self, fd: int, parameters: Sequence[nn.Parameter], optimizer: Optimizer, device: Device
    ) -> None:
        self._parameters, self._optimizer, self._device = list(parameters), optimizer, device
        self._stepped = [stepped for group in optimizer.param_groups for stepped in group["params"]]
        held = [*self._parameters, *(stepped for stepped in self._stepped for _ in MOMENTS)]
        self._size = Header.LAYOUT.size + sum(tensor.nbytes for tensor in held)
        if os.fstat(fd).st_size != SLOTS * self._size:
            os.ftruncate(fd, SLOTS * self._size)
        self._map = mmap.mmap(fd, SLOTS * self._size)
        device.pin(self._map)

    def keep(self, header: Header) -> None:
        """Copy the state after `header.step` steps over that of two steps ago."""
        self._void(header.step)
        for target, tensor in zip(self._places(header.step), self._tensors(), strict=True):
            target.copy_(tensor.detach(), non_blocking=True)
        self._device.settle()
        self.publish(header)

    def recall(self, step: int) -> Header:
        """Put parameters and moments back as they were after `step` steps."""
        header = self.header(step)
        places = self._places(step)
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.copy_(next(places))
            for stepped in self._stepped:
                at = stepped.device
                moments = {name: next(places).to(at, copy=True) for name in MOMENTS}
                self._optimizer.state[stepped] = {"step": torch.tensor(float(step), device=at), **moments}
        return header

    def header(self, step: int) -> Header:
        """The header of the slot that holds `step`. Raises LookupError where none does."""
        start = self._start(step)
        header = Header.unpack(self._map[start : start + Header.LAYOUT.size])
        if header is None or header.step != step:
            raise LookupError(f"the state after {step} steps is not in memory")
        return header

    def body(self, step: int) -> memoryview:
        """The bytes of the tensors in the slot for `step`."""
        start = self._start(step)
        return memoryview(self._map)[start + Header.LAYOUT.size : start + self._size]

    def receive(self, step: int) -> memoryview:
        """The place for the tensors of `step`, to be written by others; valid once `publish` was called."""
        self._void(step)
        return self.body(step)

    def publish(self, header: Header) -> None:
        """Say that the slot of `header.step` is whole."""
        start = self._start(header.step)
        self._map[start : start + Header.LAYOUT.size] = header.pack()

    def _void(self, step: int) -> None:
        start = self._start(step)
        self._map[start : start + Header.LAYOUT.size] = bytes(Header.LAYOUT.size)

    def _start(self, step: int) -> int:
        return step % SLOTS * self._size

    def _tensors(self) -> Iterator[Tensor]:
        yield from self._parameters
        for stepped in self._stepped:
            for name in MOMENTS:
                yield self._optimizer.state[stepped][name]

    def _places(self, step: int) -> Iterator[Tensor]:
        offset = self._start(step) + Header.LAYOUT.size
        for like in (*self._parameters, *(stepped for stepped in self._stepped for _ in MOMENTS)):
            flat = torch.frombuffer(self._map, dtype=like.dtype, count=like.numel(), offset=offset)
            yield flat.view(like.shape)
            offset += like.nbytes
