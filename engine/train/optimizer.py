"""AdamW over the layers of a rank, with weight decay on the parameters that the job names."""

from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import nn

from engine.job.sections.optimizer import OptimizerSection
from engine.nn.one_rank import ONE_RANK, OneRank

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's, as torch names them


def adamw(
    layers: Iterable[nn.Module], section: OptimizerSection, tp: OneRank = ONE_RANK
) -> torch.optim.AdamW:
    """AdamW over all parameters of the layers, in torch's fused kernel (Loshchilov and Hutter 2019).

    tp : how the layers are shared with other ranks.
    """
    layers = list(layers)
    decayed = set(chain.from_iterable(decayed_of(layer, section) for layer in layers))
    kinds = tp.kinds([parameter for layer in layers for parameter in layer.parameters()])
    parts = [
        {"params": [p for p in kind if (p in decayed) is decays], "weight_decay": rate}
        for kind in kinds
        for decays, rate in ((True, section.weight_decay), (False, 0.0))
    ]
    groups = [part for part in parts if part["params"]]
    return torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.eps, fused=True)


def decayed_of(layer: nn.Module, section: OptimizerSection) -> Iterator[nn.Parameter]:
    """The parameters of a layer that `weight_decay_on` names.

    A norm is known by the name of its class, because the weight of Cohere's has two dimensions. An output
    matrix that is tied to the embedding counts as the embedding: its two copies must stay equal.
    """
    if section.weight_decay_on == "all":
        yield from layer.parameters()
        return
    with_embedding = section.weight_decay_on == "matrices"
    for path, module in layer.named_modules():
        is_norm = "norm" in type(module).__name__.lower()
        if is_norm or (isinstance(module, nn.Embedding) and not with_embedding):
            continue
        for name, parameter in module.named_parameters(path, recurse=False):
            is_tied = name == getattr(layer, "tied", None)
            if parameter.dim() > 1 and not name.endswith("bias") and (with_embedding or not is_tied):
                yield parameter
