"""What is on the device, and the two streams next to the computing one: sub-models in, gradients out."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.job.swap.planned import SwapPlan
from engine.nn.device import Device
from engine.simulate.spans import Payload
from engine.train.recorder import Recorder
from engine.train.swap.host_model import HostModel
from engine.train.swap.memory import DeviceMemory


@dataclass(slots=True, kw_only=True)
class Resident:
    """A sub-model on the device: its parameters as leaves of autograd, by name, in one buffer."""

    flat: Tensor
    leaves: dict[str, Tensor]


class Swapper:
    """Brings sub-models to the device and their gradients back to the host.

    With gradients on the host, those of a visit leave when it ends, and take room until they have gone; with
    gradients on the device, those of the whole model stay until `settle`. So do those of a model that is one
    sub-model: it never leaves.
    """

    def __init__(
        self, model: HostModel, plan: SwapPlan, device: Device, memory: DeviceMemory, recorder: Recorder
    ) -> None:
        self._model, self._subs, self._device = model, plan.subs, device
        self._memory, self._recorder = memory, recorder
        self._stays = plan.result.gradients == "device"
        self._leaves_each_visit = not self._stays and len(plan.subs) > 1
        self._in, self._out = (ThreadPoolExecutor(1, name) for name in ("loads", "gradients"))
        self._coming: dict[int, Future[Resident]] = {}
        self._here: dict[int, Resident] = {}
        self._gradients: dict[int, Tensor] = {}
        self._going: dict[int, Future[None]] = {}
        if self._stays:
            memory.take(plan.result.reserved_bytes)
            for sub in range(len(plan.subs)):
                self._gradients[sub] = self._zeros(sub)

    def prefetch(self, sub: int) -> None:
        """Begin to load a sub-model; the load waits for room."""
        self._coming[sub] = self._in.submit(self._load, sub)

    def arrive(self, sub: int) -> Resident:
        """The sub-model on the device; waits until it is there."""
        if sub in self._coming:
            self._here[sub] = self._coming.pop(sub).result()
        elif sub not in self._here:
            self._here[sub] = self._in.submit(self._load, sub).result()
        return self._here[sub]

    def bind_gradients(self, sub: int) -> None:
        """Let backward passes of a sub-model add to its gradients; waits until earlier ones have gone."""
        if going := self._going.pop(sub, None):
            going.result()
        if sub not in self._gradients:
            self._gradients[sub] = self._zeros(sub)
        resident = self._here[sub]
        for piece in self._model.pieces[sub]:
            resident.leaves[piece.name].grad = piece.of(self._gradients[sub])

    def leave(self, sub: int, *, backward: bool, stays: bool) -> None:
        """A visit has ended: its gradients go, and the sub-model too unless the next visit is its own."""
        for leaf in self._here[sub].leaves.values():
            leaf.grad = None
        room = self._subs[sub].memory_bytes
        bytes_before = 0.0
        if not stays:
            del self._here[sub]
        if backward and self._leaves_each_visit:
            bytes_before = self._subs[sub].parameter_bytes if not stays else 0.0
            self._going[sub] = self._out.submit(self._bring_out, sub, self._gradients.pop(sub), bytes_before)
        if not stays:
            self._memory.give(room - bytes_before)

    def settle(self) -> None:
        """Wait until the gradients of all that was computed are on the host."""
        for sub in list(self._gradients):
            self._going[sub] = self._out.submit(self._bring_out, sub, self._gradients.pop(sub), 0.0)
        for sub in list(self._going):
            self._going.pop(sub).result()
        if self._stays:
            for sub in range(len(self._subs)):
                self._gradients[sub] = self._zeros(sub)

    def refresh(self) -> None:
        """The host's weights have changed: load again what is on the device."""
        for sub, resident in self._here.items():
            self._in.submit(self._fill, sub, resident.flat).result()

    def _load(self, sub: int) -> Resident:
        self._memory.take(self._subs[sub].memory_bytes)
        weights = self._model.weights[sub]
        flat = torch.empty(weights.shape, dtype=weights.dtype, device=self._device.name)
        self._fill(sub, flat)
        leaves = {piece.name: piece.of(flat).detach().requires_grad_() for piece in self._model.pieces[sub]}
        return Resident(flat=flat, leaves=leaves)

    def _fill(self, sub: int, flat: Tensor) -> None:
        self._timed(sub, None, flat.nbytes, lambda: self._device.copy_in(self._model.weights[sub], flat))

    def _bring_out(self, sub: int, gradients: Tensor, bytes_before: float) -> None:
        def copy() -> None:
            self._model.gradients[sub].add_(self._device.copy_out(gradients))

        self._timed(sub, "gradient", gradients.nbytes, copy)
        self._memory.give(bytes_before)

    def _timed(self, sub: int, payload: Payload | None, nbytes: int, copy: Callable[[], None]) -> None:
        start = time.monotonic()
        copy()
        self._recorder.op(
            "load",
            None,
            start,
            time.monotonic(),
            chunk=sub,
            payload=payload,
            nbytes=nbytes,
        )

    def _zeros(self, sub: int) -> Tensor:
        like = self._model.gradients[sub]
        return torch.zeros(like.shape, dtype=like.dtype, device=self._device.name)
