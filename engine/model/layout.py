"""How a training job is split over GPUs, and where its groups lie among HB domains.

A rank counts tensor-parallel peers first, then data-parallel ones, then pipeline stages. An HB domain of K
GPUs is filled with boxes of x_tp × x_dp × x_pp adjacent ranks: as many tensor-parallel peers as divide K
(Rail-only, Fig. 4b: TP 8 × DP 32 fill a domain of 256), of the rest as many data-parallel ones, then stages.
Members of a group in different domains then have the same position in their domains. They share a rail, and
only the traffic between experts ever leaves its rail (Rail-only, §III-B).

Every class holds numbers or numpy arrays of one shape: one entry per strategy.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.model.transformer import Transformer

Values = Any  # a number or an array of numbers: what numpy computes with


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """Degrees of parallelism. `interleave`: chunks of layers per stage; `micro_batch`: sequences at once."""

    tp: Values
    pp: Values
    dp: Values
    interleave: Values
    micro_batch: Values

    @property
    def gpus(self) -> Values:
        return self.tp * self.pp * self.dp

    def microbatches(self, batch: int) -> Values:
        """Microbatches per pipeline and iteration; of the busiest pipeline, if they are not equal."""
        return -(-batch // (self.dp * self.micro_batch))

    def at(self, index: Any) -> "Strategies":
        """The strategies at `index`: a number, a slice or a mask."""
        names = ("tp", "pp", "dp", "interleave", "micro_batch")
        return Strategies(**{name: np.asarray(getattr(self, name))[index] for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A group of x·y GPUs: x in each of y HB domains."""

    x: Values
    y: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Position of the groups of strategies in HB domains.

    tp, dp : grids of those groups.
    stages_inside : adjacent stages in one box; if it is less than pp, some hops leave the domain.
    box : GPUs that lie in one HB domain together.
    ep : grid of an expert-parallel group, a part of the data-parallel one.
    experts_dp : grid of the GPUs that hold the same experts.
    """

    tp: Grid
    dp: Grid
    stages_inside: Values
    box: Values
    ep: Grid
    experts_dp: Grid


def place(model: Transformer, strategies: Strategies, hb_domain: Values) -> Placement:
    """Lay the groups of `strategies` into HB domains of `hb_domain` GPUs."""
    x_tp = np.gcd(hb_domain, strategies.tp)
    x_dp = np.gcd(hb_domain // x_tp, strategies.dp)
    x_pp = np.gcd(hb_domain // (x_tp * x_dp), strategies.pp)
    degree = expert_parallel(model, strategies.dp)
    x_ep = np.gcd(x_dp, degree)
    y_ep = degree // x_ep
    return Placement(
        tp=Grid(x=x_tp, y=strategies.tp // x_tp),
        dp=Grid(x=x_dp, y=strategies.dp // x_dp),
        stages_inside=x_pp,
        box=x_tp * x_dp * x_pp,
        ep=Grid(x=x_ep, y=y_ep),
        experts_dp=Grid(x=x_dp // x_ep, y=strategies.dp // x_dp // y_ep),
    )


def expert_parallel(model: Transformer, dp: Values) -> Values:
    """GPUs over which the experts of a block are spread: as many as divide both experts and `dp`; 1 if
    dense.
    """
    return np.gcd(model.moe.experts if model.moe else 1, dp)


def fullest_stage(layers: int, pp: Values) -> Values:
    """Blocks of the fullest stage, which is the first: ⌈L/P⌉."""
    return -(-layers // pp)


def last_stage(layers: int, pp: Values) -> Values:
    """Blocks of the last stage, which has the fewest: ⌊L/P⌋."""
    return layers // pp
