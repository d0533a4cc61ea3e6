"""The traffic of a training iteration: every collective and every hand-over between stages, with its size.

Times (engine.model.iteration) and traffic (engine.plan.network.traffic) are both summed over this one list,
so they cannot disagree. Left out are the latency of messages, the all-reduce of a tied embedding between
first and last stage, and the few bytes of cross entropy and gradient norm.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.cluster.collectives import Operation
from engine.model.kernels import WIDTH, How
from engine.model.layout import Grid, Placement, Strategies, Values, expert_parallel
from engine.model.transformer import Transformer

Kind = Literal["tp", "pp", "ep"]
# A charge comes with each block, each block with experts, the first or last stage, or each arrival at a
# stage.
Per = Literal["block", "moe_block", "first", "last", "arrival"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A collective that one microbatch causes.

    size : D of engine.cluster.collectives; of a hand-over (`op` None) the bytes that each GPU sends on.
    forward, again, backward : its number in those passes, per block, stage or arrival (as `per` says).
    """

    kind: Kind
    op: Operation | None
    size: Values
    grid: Grid
    per: Per
    forward: int
    backward: int
    again: int = 0

    def calls(self, forward: Values, backward: Values) -> Values:
        """Total number of calls, for `forward` blocks (stages, arrivals) forward and `backward` back."""
        return forward * (self.forward + self.again) + backward * self.backward


def microbatch_charges(
    model: Transformer, how: How, strategies: Strategies, placement: Placement
) -> list[Charge]:
    """All traffic of one microbatch."""
    size = 1.0 * WIDTH * strategies.micro_batch * model.seq * model.hidden
    charges = [*_tensor(how, size, placement.tp), *_hand_over(how, size, strategies, placement)]
    if model.moe is not None:
        charges.append(_experts(model, how, size, strategies, placement))
    return charges


def gradient_bytes(parameters: Values) -> Values:
    """Bytes of the gradients of `parameters` on the wire: two each."""
    return WIDTH * parameters


def _tensor(how: How, size: Values, grid: Grid) -> list[Charge]:
    """Attention and MLP each end in an all-reduce, forward and backward (Megatron-LM).

    With sequence parallelism it is an all-gather before and a reduce-scatter after; the backward pass
    gathers the inputs of both once more for the weights' gradients, as each GPU kept only its part
    (Korthikanti et al. 2022, §4.2.2). Full recomputation repeats what the forward pass sends.
    """
    again = 2 if how.recompute == "full" else 0
    if how.sequence_parallel:
        parts: list[tuple[Operation, Per, int, int]] = [
            ("allgather", "block", 2, 4),
            ("reduce_scatter", "block", 2, 2),
            ("reduce_scatter", "first", 1, 0),
            ("allgather", "first", 0, 1),
            ("allgather", "last", 1, 0),
            ("reduce_scatter", "last", 0, 1),
        ]
    else:
        parts = [("allreduce", "block", 2, 2), ("allreduce", "first", 1, 0), ("allreduce", "last", 0, 1)]
    return [
        Charge(
            kind="tp",
            op=op,
            size=size,
            grid=grid,
            per=per,
            forward=forward,
            backward=backward,
            again=again if per == "block" else 0,
        )
        for op, per, forward, backward in parts
    ]


def _hand_over(how: How, size: Values, strategies: Strategies, placement: Placement) -> list[Charge]:
    """Activations forward, gradients back: each tensor-parallel peer sends its share over its own rail.

    Without sequence parallelism the receivers then gather the whole (Narayanan et al. 2021, §4.1).
    """
    inside = Grid(x=placement.stages_inside, y=strategies.pp // placement.stages_inside)
    charges = [
        Charge(
            kind="pp", op=None, size=size / strategies.tp, grid=inside, per="arrival", forward=1, backward=1
        )
    ]
    if not how.sequence_parallel:
        gather = Charge(
            kind="tp", op="allgather", size=size, grid=placement.tp, per="arrival", forward=1, backward=1
        )
        charges.append(gather)
    return charges


def _experts(
    model: Transformer, how: How, size: Values, strategies: Strategies, placement: Placement
) -> Charge:
    """Tokens go to their experts and come back, forward and backward.

    Peers of a tensor-parallel group each send their part of the tokens.
    """
    assert model.moe is not None
    degree = expert_parallel(model, strategies.dp)
    each = size * model.moe.top_k / (strategies.tp * degree)
    return Charge(
        kind="ep",
        op="all_to_all",
        size=each,
        grid=placement.ep,
        per="moe_block",
        forward=2,
        backward=2,
        again=2 if how.recompute == "full" else 0,
    )


def arrivals_per_stage(strategies: Strategies) -> Values:
    """Activations that a stage receives per microbatch, and as many gradients: one per chunk."""
    return np.where(strategies.pp > 1, strategies.interleave, 0)
