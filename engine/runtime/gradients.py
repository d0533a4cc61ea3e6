"""The gradients of a stage in one flat buffer, and their sum over the stage's replicas.

Behind the gradients ride a few numbers that the same sum brings together: the loss, and for each replica the
moment at which it was ready, so that waiting for a slower replica is not taken for communication.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from engine.runtime.exchange import finish

BUCKET_BYTES = 25_000_000
_WRAP_S = 4096  # whole seconds are sent modulo this, exact in fp32


class Gradients:
    """Flat gradients of `module`; `replica` is this rank's place among its `replicas`."""

    def __init__(self, module: nn.Module, *, group: Any | None, replica: int, replicas: int) -> None:
        self.parameters = list(module.parameters())
        self._group, self._replica, self._replicas = group, replica, replicas
        count = sum(parameter.numel() for parameter in self.parameters)
        dtype = self.parameters[0].dtype
        self._flat = torch.zeros(count + 1 + 2 * replicas, dtype=dtype)
        self._own = self._flat[:count]
        self._riders = self._flat[count:]
        offset = 0
        for parameter in self.parameters:
            # Autograd adds into an existing .grad in place, so all gradients gather in the flat buffer.
            parameter.grad = self._own[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    def clear(self) -> None:
        """Set all gradients to zero."""
        self._flat.zero_()

    def all_reduce(self, loss: float, unix: Callable[[float], float]) -> tuple[float, float, float]:
        """Sum gradients and loss over the replicas.

        Returns
        -------
        loss : the summed loss.
        start, end : of time.monotonic(); the start is when the last replica was ready.
        """
        ready = time.monotonic()
        if self._group is None:
            return loss, ready, ready
        self._riders[0] = loss
        seconds = unix(ready)
        self._riders[1 + 2 * self._replica] = math.floor(seconds) % _WRAP_S
        self._riders[2 + 2 * self._replica] = seconds % 1.0
        for bucket in self._flat.split(BUCKET_BYTES // self._flat.element_size()):
            finish(self._group.allreduce([bucket]), "a replica of this stage")
        end = time.monotonic()
        latest = max(self._after(seconds, replica) for replica in range(self._replicas))
        return float(self._riders[0]), min(end, ready + max(0.0, latest)), end

    def _after(self, mine: float, replica: int) -> float:
        """Seconds by which a replica was ready after this one."""
        whole, part = self._riders[1 + 2 * replica : 3 + 2 * replica].tolist()
        ahead = whole + part - (math.floor(mine) % _WRAP_S + mine % 1.0)
        return (ahead + _WRAP_S / 2) % _WRAP_S - _WRAP_S / 2

    def square_sum(self) -> float:
        """Sum of the squares of all gradients of the stage."""
        return float(torch.dot(self._own, self._own))

    def scale(self, factor: float) -> None:
        """Multiply all gradients."""
        self._own.mul_(factor)
