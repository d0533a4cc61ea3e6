"""Weights in the type that is computed with, cast once after each step of the optimizer.

A bf16 job keeps fp32 weights. Casting them for each microbatch would cost memory traffic every time, and each
microbatch in flight would hold a copy of its own for its backward pass.
"""

from functools import partial

import torch
from torch import Tensor, nn


class CastWeights:
    """Copies of a layer's weights in `dtype`, on the weights' device; an embedding casts the rows it reads.

    Autograd brings gradients to the copies. They are added to those of the weights, in the weights' type, and
    let go of at once.

    copies : by the weights' names.
    """

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        whole = {id(module.weight) for module in layer.modules() if isinstance(module, nn.Embedding)}
        self._weights = {n: p for n, p in layer.named_parameters() if id(p) not in whole}
        self.copies = {n: p.detach().to(dtype).requires_grad_() for n, p in self._weights.items()}
        for name, copy in self.copies.items():
            copy.register_post_accumulate_grad_hook(partial(_hand_over, self._weights[name]))

    @torch.no_grad()
    def again(self) -> None:
        """Cast all weights again: they have changed."""
        for name, weight in self._weights.items():
            self.copies[name].copy_(weight)

    def leaves(self) -> dict[int, Tensor]:
        """By the id of a weight: the copy to which autograd brings its gradient."""
        return {id(weight): self.copies[name] for name, weight in self._weights.items()}


def _hand_over(weight: nn.Parameter, copy: Tensor) -> None:
    assert copy.grad is not None
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    weight.grad.add_(copy.grad)
    copy.grad = None
