"""All splits of a training job over GPUs, and the fastest that fits: plain enumeration, in arrays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.errors import InputError
from engine.model import kernels
from engine.model.iteration import Machine, Parts, iteration
from engine.model.kernels import How
from engine.model.layout import Strategies, fullest_stage, place
from engine.model.memory import moe_blocks, training_memory
from engine.model.transformer import Transformer

AT_ONCE = 100_000  # strategies computed together: bounds memory
MOST_TRIED = 10_000_000
PARTS = ("compute", "tp", "pp", "dp", "ep", "bubble")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The training job; degrees that are None are enumerated."""

    model: Transformer
    how: How
    batch: int
    memory_bytes: float
    shard_optimizer: bool = False
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    interleave: int | None = None
    micro_batch: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Domains:
    """The HB domains: (number, GPUs left in each), all built for `size` GPUs."""

    size: int
    groups: tuple[tuple[int, int], ...]

    @property
    def gpus(self) -> int:
        return sum(count * left for count, left in self.groups)

    def boxes(self, box: np.ndarray) -> np.ndarray:
        """Number of boxes of `box` GPUs that fit, none across two domains."""
        return sum((count * (left // box) for count, left in self.groups), np.zeros_like(box))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The fastest strategy (plain numbers), its parts, and bytes per GPU."""

    strategies: Strategies
    parts: Parts
    memory_bytes: float
    hb_domain: int

    @property
    def iteration_s(self) -> float:
        return float(self.parts.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoneFits:
    """Why no strategy fits, and the least memory that any would need, if memory is the reason."""

    reason: str
    memory_bytes: float | None = None


def divisors(number: int) -> list[int]:
    """Every divisor, in order."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def enumerate_strategies(
    training: Training, gpus: int, *, leave_idle: bool = False, uneven: bool = False
) -> Strategies:
    """Every strategy on `gpus` GPUs, on all of them unless `leave_idle`.

    TP divides the attention heads; DP × micro-batch divides the batch; a stage has at least one layer, an
    uneven last one included; chunks of an interleaved stage are equal and M is a multiple of P (Megatron-LM).

    Parameters
    ----------
    uneven : DP that does not divide the batch instead, so some replicas have one more microbatch. Of the DPs
        that give the busiest one the same number, those that are a multiple of 1, 2, 4, … and least.

    Raises
    ------
    InputError
        More combinations than can be tried.
    """
    of_batch = divisors(training.batch)
    axes = (
        _given_or(training.tp, divisors(training.model.heads)),
        _given_or(training.pp, _stages(training.model.layers, gpus, leave_idle)),
        _given_or(training.dp, _unequal_replicas(training.batch, gpus) if uneven else of_batch),
        _given_or(training.micro_batch, of_batch),
    )
    tried = math.prod(len(axis) for axis in axes)
    if tried > MOST_TRIED:
        allowed = f"{tried:,} strategies to try, at most {MOST_TRIED:,}: give tp, pp, dp or micro_batch"
        raise InputError("pp", training.pp, allowed)
    strategies = [_with_tp(training, gpus, tp, axes, leave_idle=leave_idle, uneven=uneven) for tp in axes[0]]
    return _interleaved(training, np.concatenate(strategies, axis=1))


def _stages(layers: int, gpus: int, leave_idle: bool) -> list[int]:
    most = min(layers, gpus)
    return list(range(1, most + 1)) if leave_idle else [pp for pp in divisors(gpus) if pp <= most]


def _unequal_replicas(batch: int, gpus: int) -> list[int]:
    """For every number of sequences of the busiest replica the fewest replicas, rounded up to powers of
    two.
    """
    root = math.isqrt(batch)
    busiest = {*range(1, root + 1), *(-(-batch // replicas) for replicas in range(1, root + 1))}
    fewest = {-(-batch // sequences) for sequences in busiest}
    rounded = {-(-dp // step) * step for dp in fewest for step in (1, 2, 4, 8, 16, 32)}
    return sorted(dp for dp in rounded if dp <= min(batch, gpus))


def _given_or(given: int | None, otherwise: list[int]) -> np.ndarray:
    return np.array([given] if given is not None else otherwise, dtype=np.int64)


def _with_tp(
    training: Training, gpus: int, tp: int, axes: tuple[np.ndarray, ...], *, leave_idle: bool, uneven: bool
) -> np.ndarray:
    """Rows tp, pp, dp, micro-batch of the strategies with that TP."""
    pp, dp, micro_batch = (axis.ravel() for axis in np.meshgrid(*axes[1:], indexing="ij"))
    used = tp * pp * dp
    is_valid = (used <= gpus) if leave_idle else (used == gpus)
    is_valid &= training.batch % micro_batch == 0
    even = training.batch % (dp * micro_batch) == 0
    is_valid &= ~even & (dp * micro_batch <= training.batch) if uneven else even
    return np.stack([np.full(is_valid.sum(), tp), pp[is_valid], dp[is_valid], micro_batch[is_valid]])


def _interleaved(training: Training, columns: np.ndarray) -> Strategies:
    """The strategies with every number of chunks per stage."""
    layers, (tp, pp, dp, micro_batch) = training.model.layers, columns
    chunks = _given_or(training.interleave, divisors(layers))
    at, v = (axis.ravel() for axis in np.meshgrid(np.arange(len(tp)), chunks, indexing="ij"))
    whole_passes = -(-training.batch // (dp * micro_batch)) % pp == 0
    even = (layers % (pp[at] * v) == 0) & whole_passes[at]
    is_valid = (v == 1) | ((pp[at] > 1) & even)
    at, v = at[is_valid], v[is_valid]
    return Strategies(tp=tp[at], pp=pp[at], dp=dp[at], interleave=v, micro_batch=micro_batch[at])


def fastest(
    training: Training, machine: Machine, domains: Domains, *, leave_idle: bool = False
) -> Chosen | NoneFits:
    """The fastest strategy on `domains`. Of equals the one on fewest GPUs, then of least TP, PP, DP, chunks.

    Strategies that leave GPUs idle count if none that uses all of them fits, or if `leave_idle`.
    """
    answer: Chosen | NoneFits | None = None
    for idle in (True,) if leave_idle else (False, True):
        if not isinstance(answer, Chosen):
            strategies = enumerate_strategies(training, domains.gpus, leave_idle=idle)
            answer = _best_of(training, machine, domains, strategies, answer)
    return answer or NoneFits(reason=_no_split(training, domains.gpus))


def fastest_of_rest(training: Training, machines: Sequence[Machine], left: Domains) -> Chosen | NoneFits:
    """The fastest on any of `machines` after a failure: GPUs may idle, replicas may have unequal work.

    machines : the same machine with HB domains treated as smaller ones; each has its size.
    """
    best: Chosen | NoneFits | None = None
    for uneven in (False, True):
        strategies = enumerate_strategies(training, left.gpus, leave_idle=True, uneven=uneven)
        for machine in machines:
            size = machine.hb_domain or left.size
            best = _best_of(training, machine, replace(left, size=size), strategies, best)
    return best or NoneFits(reason=_no_split(training, left.gpus))


def _best_of(
    training: Training,
    machine: Machine,
    domains: Domains,
    strategies: Strategies,
    best: Chosen | NoneFits | None,
) -> Chosen | NoneFits | None:
    for start in range(0, len(strategies.tp), AT_ONCE):
        part = strategies.at(slice(start, start + AT_ONCE))
        if isinstance(best, Chosen):
            part = part.at(_least_s(training, machine, part) < best.iteration_s)
        best = _better(best, _fastest_of(training, machine, domains, part))
    return best


def _least_s(training: Training, machine: Machine, strategies: Strategies) -> np.ndarray:
    """Lower bound on each strategy's time: the dense blocks of its fullest stage, every microbatch and
    bubble.
    """
    model, micro_batch, tp = training.model, strategies.micro_batch, strategies.tp
    block_s = kernels.block(model, training.how, machine.device, micro_batch, tp).total_s
    dense = fullest_stage(model.layers, strategies.pp) - moe_blocks(model, strategies.pp)
    beats = strategies.microbatches(training.batch) + (strategies.pp - 1) / strategies.interleave
    # Reduced by more than rounding, so a strategy that is better by more than that is never lost.
    return beats * dense * block_s * (1 - 1e-12)


def _fastest_of(
    training: Training, machine: Machine, domains: Domains, strategies: Strategies
) -> Chosen | NoneFits | None:
    placed = place(training.model, strategies, machine.hb_domain or strategies.gpus)
    room = strategies.gpus // placed.box <= domains.boxes(placed.box)
    if machine.hb_domain is None:
        room = np.ones_like(room)
    strategies = strategies.at(room)
    if not len(strategies.tp):
        return None
    memory = training_memory(
        training.model, training.how, strategies, training.batch, shard_optimizer=training.shard_optimizer
    ).total
    fits = memory <= training.memory_bytes
    if not fits.any():
        return _too_large(training, strategies, memory)
    strategies, memory = strategies.at(fits), memory[fits]
    parts = iteration(training.model, training.how, strategies, training.batch, machine)
    keys = ("micro_batch", "interleave", "dp", "pp", "tp", "gpus")
    order = np.lexsort((*(getattr(strategies, key) for key in keys), parts.total))
    first = int(order[0])
    return Chosen(
        strategies=strategies.at(first),
        parts=_at(parts, first, len(memory)),
        memory_bytes=float(memory[first]),
        hb_domain=machine.hb_domain or domains.gpus,
    )


def _at(parts: Parts, index: int, count: int) -> Parts:
    return Parts(**{name: float(np.broadcast_to(getattr(parts, name), (count,))[index]) for name in PARTS})


def _better(a: Chosen | NoneFits | None, b: Chosen | NoneFits | None) -> Chosen | NoneFits | None:
    if a is None or b is None:
        return a or b
    if isinstance(a, Chosen) and isinstance(b, Chosen):
        return b if b.iteration_s < a.iteration_s else a
    if isinstance(a, NoneFits) and isinstance(b, NoneFits):
        return b if (b.memory_bytes or 0) < (a.memory_bytes or 0) else a
    return a if isinstance(a, Chosen) else b


def _too_large(training: Training, strategies: Strategies, memory: np.ndarray) -> NoneFits:
    least = int(np.argmin(memory))
    at = strategies.at(least)
    needed, there = float(memory[least]), training.memory_bytes
    reason = (
        f"memory: at least {needed / 1e9:.1f} GB per GPU (tp {at.tp}, pp {at.pp}, dp {at.dp}), "
        f"{(needed - there) / 1e9:.1f} GB more than the {there / 1e9:.1f} GB available"
    )
    return NoneFits(reason=reason, memory_bytes=needed)


def _no_split(training: Training, gpus: int) -> str:
    degrees = {"tp": training.tp, "pp": training.pp, "dp": training.dp, "interleave": training.interleave}
    given = ", ".join(f"{name} {value}" for name, value in degrees.items() if value is not None)
    return (
        f"no split of {training.model.layers} layers and {training.batch} sequences over {gpus} GPUs"
        + (f" with {given}" if given else "")
        + ": interleaving needs equal chunks and microbatches in multiples of pp"
        * (training.interleave is not None)
    )
