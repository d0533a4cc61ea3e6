"""Seconds of one training iteration, by part: an analytical model of the critical path (Rail-only, §V-A).

The pipeline runs 1F1B, interleaved if a stage has several chunks. Its beat is the time of the slowest stage
for one microbatch: the first stage has the most blocks, the last has the output matrix. An iteration takes M
beats and a bubble of (P−1)/v beats (Narayanan et al. 2021, §2.2), then the gradients' all-reduce and the
optimizer. Nothing overlaps.
"""

from dataclasses import dataclass

import numpy as np

from engine.cluster.collectives import Rates, full_bisection_s, hierarchical_s
from engine.model import kernels
from engine.model.charges import Charge, arrivals_per_stage, gradient_bytes, microbatch_charges
from engine.model.kernels import Device, How
from engine.model.layout import (
    Placement,
    Strategies,
    Values,
    expert_parallel,
    fullest_stage,
    last_stage,
    place,
)
from engine.model.memory import moe_blocks, stage_parameters, unshared_parameters
from engine.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """GPUs in HB domains on rails, at the rates that are reached.

    hb_domain : GPUs in one; None: all that a strategy uses, the ideal of Rail-only, §V-B.
    spines : rail-optimised: all-to-all traffic is not forwarded.
    latency_s : of a message between domains; only the all-to-all of experts counts it.
    """

    device: Device
    hb_domain: int | None
    rates: Rates
    spines: bool = False
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds by part. `compute` includes the optimizer's step; `bubble` is all waiting time of a GPU."""

    compute: Values
    tp: Values
    pp: Values
    dp: Values
    ep: Values
    bubble: Values

    @property
    def total(self) -> Values:
        return self.compute + self.tp + self.pp + self.dp + self.ep + self.bubble


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beat:
    """The work of one stage for one microbatch."""

    compute: Values
    tp: Values
    pp: Values
    ep: Values

    @property
    def total(self) -> Values:
        return self.compute + self.tp + self.pp + self.ep


def iteration(model: Transformer, how: How, strategies: Strategies, batch: int, machine: Machine) -> Parts:
    """The parts of one iteration over `batch` sequences, for each of `strategies`."""
    placement = place(model, strategies, machine.hb_domain or strategies.gpus)
    charges = microbatch_charges(model, how, strategies, placement)
    first = _beat(model, how, strategies, machine, charges, is_last=False)
    last = _beat(model, how, strategies, machine, charges, is_last=True)
    beat = _slower(first, last)
    microbatches = strategies.microbatches(batch)
    step_s = kernels.optimizer_s(machine.device, np.maximum(*stage_parameters(model, strategies)))
    return Parts(
        compute=microbatches * beat.compute + step_s,
        tp=microbatches * beat.tp,
        pp=microbatches * beat.pp,
        dp=_gradients_s(model, strategies, placement, machine),
        ep=microbatches * beat.ep,
        bubble=(strategies.pp - 1) / strategies.interleave * beat.total,
    )


def charge_s(charge: Charge, machine: Machine) -> Values:
    """Seconds of one call of `charge`."""
    if charge.op is None:  # a hand-over; the beat is set by a stage whose adjacent stage is in another domain
        leaves = charge.grid.y > 1
        return charge.size / np.where(leaves, machine.rates.nic_bytes_per_s, machine.rates.hb_bytes_per_s)
    seconds = full_bisection_s if machine.spines else hierarchical_s
    spent = seconds(charge.op, charge.size, charge.grid.x, charge.grid.y, machine.rates)
    if charge.op == "all_to_all" and machine.latency_s:  # its messages are under way at once
        return spent + np.where(charge.grid.y > 1, machine.latency_s, 0.0)
    return spent


def _beat(
    model: Transformer,
    how: How,
    strategies: Strategies,
    machine: Machine,
    charges: list[Charge],
    *,
    is_last: bool,
) -> _Beat:
    """One microbatch on the first or on the last stage; a pipeline of one stage is both."""
    pp, alone = strategies.pp, np.equal(strategies.pp, 1)
    blocks = last_stage(model.layers, pp) if is_last else fullest_stage(model.layers, pp)
    moe = np.minimum(moe_blocks(model, pp), blocks)
    counts = {
        "block": blocks,
        "moe_block": moe,
        "first": alone if is_last else 1,
        "last": 1 if is_last else alone,
        "arrival": arrivals_per_stage(strategies),
    }
    spent = {"tp": 0.0, "pp": 0.0, "ep": 0.0}
    for charge in charges:
        calls = charge.calls(counts[charge.per], counts[charge.per])
        spent[charge.kind] = spent[charge.kind] + calls * charge_s(charge, machine)
    return _Beat(compute=_compute_s(model, how, strategies, machine, blocks, moe, counts["last"]), **spent)


def _compute_s(
    model: Transformer,
    how: How,
    strategies: Strategies,
    machine: Machine,
    blocks: Values,
    moe: Values,
    heads: Values,
) -> Values:
    tp, micro_batch = strategies.tp, strategies.micro_batch
    seconds = (blocks - moe) * kernels.block(model, how, machine.device, micro_batch, tp).total_s
    if model.moe is not None:
        local = model.moe.experts // expert_parallel(model, strategies.dp)
        seconds = (
            seconds + moe * kernels.moe_block(model, how, machine.device, micro_batch, tp, local).total_s
        )
    return seconds + heads * kernels.head(model, machine.device, micro_batch, tp).total_s


def _slower(first: _Beat, last: _Beat) -> _Beat:
    pick = first.total >= last.total
    names = ("compute", "tp", "pp", "ep")
    return _Beat(**{name: np.where(pick, getattr(first, name), getattr(last, name)) for name in names})


def _gradients_s(
    model: Transformer, strategies: Strategies, placement: Placement, machine: Machine
) -> Values:
    """All-reduce of the largest stage's gradients; those of experts among the GPUs that hold them."""
    experts = unshared_parameters(model, strategies) / strategies.tp
    shared = np.maximum(*stage_parameters(model, strategies)) - experts
    return sum(
        hierarchical_s("allreduce", gradient_bytes(parameters), grid.x, grid.y, machine.rates)
        for parameters, grid in ((shared, placement.dp), (experts, placement.experts_dp))
    )
