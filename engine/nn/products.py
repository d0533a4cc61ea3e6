"""Products with weights whose gradients are kept in a wider type: bf16 products, fp32 gradients.

Autograd would write each gradient in bf16 and add it in a second pass over the memory. Here the kernel that
computes the product of a weight's gradient adds it, as Megatron-LM's `gradient_accumulation_fusion` does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional


class BackwardParts:
    """The parts of a backward pass that a chunk computes now: autograd tells Python functions not which."""

    def __init__(self) -> None:
        self.inputs = self.weights = True

    @contextmanager
    def only(self, part: Literal["inputs", "weights"]) -> Iterator[None]:
        """Compute one part alone in here."""
        self.inputs, self.weights = part == "inputs", part == "weights"
        try:
            yield
        finally:
            self.inputs = self.weights = True


class GradientSum:
    """The gradient of one weight, in the weight's type.

    parts : of the weight's chunk.  told : called after each gradient that is added.
    """

    def __init__(self, weight: nn.Parameter, parts: BackwardParts) -> None:
        self._weight, self.parts = weight, parts
        self.told: list[Callable[[], None]] = []

    def add(self, gradient: Tensor) -> None:
        """Add a gradient of any type."""
        self._sum().add_(gradient)
        self._tell()

    def add_product(self, upstream: Tensor, x: Tensor) -> None:
        """Add upstreamᵀ·x, of shapes (…, outputs) and (…, inputs), to a gradient (outputs, inputs)."""
        total, left, right = self._sum(), upstream.flatten(0, -2).T, x.flatten(0, -2)
        if total.is_cuda and total.dtype is torch.float32:
            torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
        else:
            total.add_(left @ right)
        self._tell()

    def _sum(self) -> Tensor:
        if self._weight.grad is None:
            self._weight.grad = torch.zeros_like(self._weight)
        return self._weight.grad

    def _tell(self) -> None:
        for note in self.told:
            note()


class Product(torch.autograd.Function):
    """x·Wᵀ + b, whose backward pass adds the gradient of W to a `GradientSum` and gives autograd the rest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, total: GradientSum) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.total = total
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        needs_x, _, needs_bias, _ = ctx.needs_input_grad
        parts = ctx.total.parts
        into_x = upstream @ weight if needs_x and parts.inputs else None
        into_bias = upstream.flatten(0, -2).sum(0) if needs_bias and parts.weights else None
        if parts.weights:
            ctx.total.add_product(upstream, x)
        return into_x, None, into_bias, None
