"""AdamW over the layers of a rank, with weight decay on the parameters that the job names."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableMapping
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as step_by_adamw

from engine.job.sections.optimizer import OptimizerSection
from engine.nn.one_rank import ONE_RANK, OneRank

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's, as torch names them


class Optimizer(Protocol):
    """What checkpoints and the memory of a rank use of an optimizer; those of torch have it too."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameters with the settings that they share."""

    @property
    def state(self) -> MutableMapping[Tensor, Any]:
        """Step and moments of each parameter that has stepped."""

    def step(self) -> Any:
        """Step all parameters that have a gradient."""


class AdamW:
    """torch.optim.AdamW(fused=True) by torch's function of it, with equal bits and equal state.

    torch's class imports torch._dynamo when one is made: 330 modules, 38 MB and 0.6 s of a core in each host.

    groups : each with `params`, `lr`, `betas`, `eps` and `weight_decay`, as torch's class has them.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self.param_groups = list(groups)
        self.state: defaultdict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    @torch.no_grad()
    def step(self) -> None:
        """Step all parameters that have a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self._state_of(parameter) for parameter in parameters]
            beta1, beta2 = group["betas"]
            step_by_adamw(
                parameters,
                [parameter.grad for parameter in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],  # amsgrad's maxima
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for moment in MOMENTS:
                state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def adamw(layers: Iterable[nn.Module], section: OptimizerSection, tp: OneRank = ONE_RANK) -> AdamW:
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
    shared = {"lr": section.lr, "betas": section.betas, "eps": section.eps}
    return AdamW({**part, **shared} for part in parts if part["params"])


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
