"""Weights in the type that is computed with, cast once after each step of the optimizer.

A bf16 job keeps fp32 weights. Casting them for each microbatch would cost memory traffic every time, and each
microbatch in flight would hold a copy of its own for its backward pass.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from engine.nn.layers import Linear
from engine.nn.products import BackwardParts, GradientSum


class CastWeights:
    """Copies of a layer's weights in `dtype`, on the weights' device; an embedding casts the rows it reads.

    Gradients of the copies are added to those of the weights, in the weights' type: those of products by the
    product's own kernel, the others once autograd has brought them.

    parts : of a backward pass, which the layer's chunk computes.
    copies : by the weights' names.
    """

    def __init__(self, layer: nn.Module, dtype: torch.dtype, parts: BackwardParts) -> None:
        whole = {id(module.weight) for module in layer.modules() if isinstance(module, nn.Embedding)}
        self._weights = {n: p for n, p in layer.named_parameters() if id(p) not in whole}
        self.copies = {n: p.detach().to(dtype).requires_grad_() for n, p in self._weights.items()}
        self._sums = {id(weight): GradientSum(weight, parts) for weight in self._weights.values()}
        products = [module for module in layer.modules() if isinstance(module, Linear)]
        for module in products:
            module.gradient_sum = self._sums[id(module.weight)]
        added = {id(module.weight) for module in products}
        for name, weight in self._weights.items():
            if id(weight) not in added:
                hand_over = partial(_hand_over, self._sums[id(weight)])
                self.copies[name].register_post_accumulate_grad_hook(hand_over)

    @torch.no_grad()
    def again(self) -> None:
        """Cast all weights again: they have changed."""
        for name, weight in self._weights.items():
            self.copies[name].copy_(weight)

    def when_added(self, weight: nn.Parameter, tell: Callable[[], None]) -> bool:
        """Tell of each gradient that is added to a weight; False if it is none of those that are cast."""
        if id(weight) not in self._sums:
            return False
        self._sums[id(weight)].told.append(tell)
        return True


def _hand_over(total: GradientSum, copy: Tensor) -> None:
    assert copy.grad is not None
    total.add(copy.grad)
    copy.grad = None
