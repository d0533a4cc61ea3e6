"""A stage that makes messages of the right size and computes nothing: its time is emulated."""

import functools
import time
from typing import Any

import torch
from torch import Tensor, nn

DTYPE = torch.bfloat16
LOGITS = (1, 1, 2)  # of the last stage: as small as a loss can take them


class _Made(torch.autograd.Function):
    """A tensor of `shape`, whatever comes in; backward zeros of the input's shape, after `backward_s`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, shape: tuple[int, ...], backward_s: float) -> Tensor:
        ctx.gives = tuple(x.shape) if x.is_floating_point() else None
        ctx.backward_s = backward_s
        return _zeros(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        begin = time.monotonic()
        gradient = None if ctx.gives is None else _zeros(ctx.gives)
        sleep_until(begin + ctx.backward_s)
        return gradient, torch.zeros(1), None, None


class Block(nn.Module):
    """A stage whose output has `shape`; a forward pass lasts `forward_s`, a backward pass `backward_s`.

    `tape` is what the executor sets where a backward pass is split; nothing is noted there.
    """

    def __init__(self, shape: tuple[int, ...], *, forward_s: float = 0.0, backward_s: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.tape: list[Any] | None = None
        self._shape, self._forward_s, self._backward_s = shape, forward_s, backward_s

    def forward(self, x: Tensor) -> Tensor:
        begin = time.monotonic()
        output: Tensor = _Made.apply(x, self.weight, self._shape, self._backward_s)
        sleep_until(begin + self._forward_s)
        return output


def _zeros(shape: tuple[int, ...]) -> Tensor:
    """Views of one tensor: nobody writes into a message, and its making is no part of what is measured."""
    return _all_zeros(shape).view(shape)


@functools.cache
def _all_zeros(shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=DTYPE)


def sleep_until(moment: float) -> None:
    """Return at `moment`, time.monotonic(), or at once where that is past."""
    time.sleep(max(0.0, moment - time.monotonic()))
