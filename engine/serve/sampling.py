"""Drawing the next token from a model's logits."""

import torch
from torch import Tensor

from engine.prefill.messages import Sampling


def draw(logits: Tensor, sampling: Sampling, *, at: int) -> int:
    """One token id; temperature 0 takes the likeliest.

    Parameters
    ----------
    logits : (vocabulary,).
    at : the token's place in the answer, from 0: with a seed each place has its own numbers, whoever draws.
    """
    logits = logits.to("cpu")  # where the generator is
    if sampling.temperature == 0:
        return int(logits.argmax())
    shares = torch.softmax(logits.float() / sampling.temperature, dim=-1)
    ordered, ids = shares.sort(descending=True)
    # The fewest tokens whose shares add up to top_p: the likeliest one always (Holtzman et al. 2020).
    ordered = torch.where(ordered.cumsum(-1) - ordered < sampling.top_p, ordered, 0.0)
    generator = None
    if sampling.seed is not None:
        generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + at) % 2**63)
    return int(ids[torch.multinomial(ordered, 1, generator=generator)])
