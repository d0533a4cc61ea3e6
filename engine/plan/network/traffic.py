"""Traffic by sender and receiver in one iteration, summed over the same charges as the iteration's time.

Collectives run as rings: inside the HB domain over the x peers there, over rails among the y domains.
All-to-all traffic is forwarded: first along rails, then inside the domain (Rail-only, §IV-B).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.cluster.collectives import sent_bytes
from engine.model.charges import (
    Charge,
    arrivals_per_stage,
    gradient_bytes,
    microbatch_charges,
)
from engine.model.kernels import How
from engine.model.layout import Grid, Placement, Strategies, expert_parallel, place
from engine.model.transformer import Transformer

KINDS = ("tp", "dp", "pp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Bytes that every GPU of the pipeline's stage sends to its group of one kind, in one iteration."""

    kind: str
    grid: Grid
    all_to_all: bool
    inside: float
    outside: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One strategy's traffic: bytes by kind, inside HB domains and through NICs, and GPU pairs by kind.

    pairs : ordered pairs (from, to) that carry traffic of that kind, and those that carry none; a pair that
        carries DP and EP traffic counts as DP.
    """

    hb_bytes: dict[str, float]
    nic_bytes: dict[str, float]
    pairs: dict[str, int]
    gpus: int

    @property
    def total_bytes(self) -> float:
        return sum(self.hb_bytes.values()) + sum(self.nic_bytes.values())

    def as_dict(self) -> dict[str, object]:
        """The `traffic` of docs/dev/contracts.md: `pairs` as shares of all ordered pairs; NIC bytes."""
        both = {kind: self.hb_bytes[kind] + self.nic_bytes[kind] for kind in KINDS}
        every = max(1, self.gpus * (self.gpus - 1))
        return {
            "bytes": {
                "tp": both["tp"],
                "dp_hb": self.hb_bytes["dp"],
                "dp_nic": self.nic_bytes["dp"],
                "pp": both["pp"],
                "ep": both["ep"],
            },
            "pairs": {kind: count / every for kind, count in self.pairs.items()},
            "nic_bytes": self.nic_bytes,
            "total_bytes": self.total_bytes,
            "pair_counts": self.pairs,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job on one strategy (plain numbers) in HB domains of `hb_domain` GPUs, `gpus` in all."""

    model: Transformer
    how: How
    strategies: Strategies
    batch: int
    hb_domain: int
    gpus: int
    placement: Placement = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", place(self.model, self.strategies, self.hb_domain))

    @property
    def stages(self) -> int:
        return int(self.strategies.pp)

    @property
    def chunks(self) -> int:
        return int(self.strategies.interleave)

    @property
    def microbatches(self) -> int:
        return int(self.strategies.microbatches(self.batch))

    def blocks(self, stage: int) -> int:
        """Blocks of a stage, as even as possible; the first stages get the odd ones."""
        each, over = divmod(self.model.layers, self.stages)
        return each + (stage < over)

    def moe_blocks(self, stage: int) -> int:
        """Blocks of a stage that have experts, counting contiguous stages from the first block."""
        each, over = divmod(self.model.layers, self.stages)
        start = stage * each + min(stage, over)
        return self.model.moe_blocks(start, start + self.blocks(stage))


def traffic(job: Job) -> Traffic:
    """The totals of `job`, over all GPUs, and the pairs."""
    hb, nic = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    ranks = int(job.strategies.tp * job.strategies.dp)
    for stage in range(job.stages):
        for flow in flows(job, stage):
            hb[flow.kind] += ranks * flow.inside
            nic[flow.kind] += ranks * flow.outside
    for _, leaves, size in hops(job):
        (nic if leaves else hb)["pp"] += ranks * size
    return Traffic(hb_bytes=hb, nic_bytes=nic, pairs=_pairs(job), gpus=job.gpus)


def flows(job: Job, stage: int) -> Iterator[Flow]:
    """Traffic of each GPU of `stage` in collectives."""
    is_first, is_last = stage == 0, stage == job.stages - 1
    blocks, moe = job.blocks(stage), job.moe_blocks(stage)
    chunks = int(arrivals_per_stage(job.strategies))
    # Nothing arrives at the first chunk forward, nor at the last one backward.
    alone = job.stages == 1
    counts = {
        "block": (blocks, blocks),
        "moe_block": (moe, moe),
        "first": (int(is_first), int(is_first)),
        "last": (int(is_last), int(is_last)),
        "arrival": (chunks - (is_first and not alone), chunks - (is_last and not alone)),
    }
    for charge in microbatch_charges(job.model, job.how, job.strategies, job.placement):
        if charge.op is not None:
            yield _flow(charge, charge.calls(*counts[charge.per]) * job.microbatches)
    yield from _gradients(job, stage)


def _flow(charge: Charge, calls: int) -> Flow:
    assert charge.op is not None
    grid = charge.grid
    inside, outside = sent_bytes(charge.op, charge.size, grid.x, grid.y)
    return Flow(
        kind=charge.kind,
        grid=grid,
        all_to_all=charge.op == "all_to_all",
        inside=float(inside) * calls,
        outside=float(outside) * calls,
    )


def _gradients(job: Job, stage: int) -> Iterator[Flow]:
    """All-reduces of the stage's gradients: experts' among the GPUs that hold the same ones."""
    shared, experts = stage_gradients(job, stage)
    for parameters, grid in ((shared, job.placement.dp), (experts, job.placement.experts_dp)):
        inside, outside = sent_bytes("allreduce", gradient_bytes(parameters), grid.x, grid.y)
        yield Flow(kind="dp", grid=grid, all_to_all=False, inside=float(inside), outside=float(outside))


def stage_gradients(job: Job, stage: int) -> tuple[float, float]:
    """Parameters of one GPU of `stage`: those that all replicas share, and its experts."""
    model, tp = job.model, int(job.strategies.tp)
    shared = job.blocks(stage) * model.layer_parameters
    shared += model.embedding_parameters if stage == 0 else 0
    shared += model.head_parameters if stage == job.stages - 1 else 0
    shared -= model.tied_parameters if job.stages == 1 else 0
    experts = 0.0
    if model.moe is not None:
        local = model.moe.experts / float(expert_parallel(model, job.strategies.dp))
        moe_blocks = job.moe_blocks(stage)
        experts = moe_blocks * local * model.expert_parameters
        shared += moe_blocks * model.beside_experts
    return shared / tp, experts / tp


def hops(job: Job) -> Iterator[tuple[tuple[int, int], bool, float]]:
    """((from stage, to stage), whether it leaves the HB domain, bytes per GPU and iteration), in both
    directions.

    Stages run up and down through the boxes of a domain, so the hop between two domains stays on its rail. So
    does an interleaved pipeline's hop back to the first stage if the number of domains is even.
    """
    stages, inside = job.stages, int(job.placement.stages_inside)
    if stages == 1:
        return
    size = float(_hand_over(job).size) * job.microbatches
    for stage in range(stages - 1):
        leaves = (stage + 1) % inside == 0
        yield (stage, stage + 1), leaves, job.chunks * size
        yield (stage + 1, stage), leaves, job.chunks * size
    if job.chunks > 1:
        leaves = inside < stages
        yield (stages - 1, 0), leaves, (job.chunks - 1) * size
        yield (0, stages - 1), leaves, (job.chunks - 1) * size


def _hand_over(job: Job) -> Charge:
    charges = microbatch_charges(job.model, job.how, job.strategies, job.placement)
    return next(charge for charge in charges if charge.op is None)


def peers(grid: Grid, index: int, *, all_to_all: bool) -> tuple[list[int], list[int]]:
    """Receivers of member `index` = outer · x + inner of a grid: (inside its domain, over its rail)."""
    x, y = int(grid.x), int(grid.y)
    outer, inner = divmod(index, x)
    if all_to_all:
        inside = [outer * x + i for i in range(x) if i != inner]
        return inside, [o * x + inner for o in range(y) if o != outer]
    return [outer * x + (inner + 1) % x] * (x > 1), [(outer + 1) % y * x + inner] * (y > 1)


def _pairs(job: Job) -> dict[str, int]:
    """Ordered pairs by kind. Groups of a kind are alike: one is counted and multiplied."""
    tp, pp, dp = (int(getattr(job.strategies, name)) for name in ("tp", "pp", "dp"))
    hop_pairs = len({ends for ends, _, _ in hops(job)})
    dp_pairs, ep_pairs = _data_parallel_pairs(job)
    pairs = {
        "tp": dp * pp * tp * _degree(job.placement.tp),
        "dp": tp * pp * dp_pairs,
        "pp": tp * dp * hop_pairs,
    }
    if job.model.moe is not None:
        pairs["ep"] = tp * pp * ep_pairs
    return {**pairs, "none": job.gpus * (job.gpus - 1) - sum(pairs.values())}


def _degree(grid: Grid) -> int:
    """Peers that each member sends to in a ring inside the domain and one over the rail."""
    return int(grid.x > 1) + int(grid.y > 1)


def _data_parallel_pairs(job: Job) -> tuple[int, int]:
    """Pairs of one data-parallel group that carry gradients, and those that carry only experts' tokens.

    Counted member by member: all pairs of a large group would not fit in memory.
    """
    dp = int(job.strategies.dp)
    if job.model.moe is None:
        return dp * _degree(job.placement.dp), 0
    with_gradients = with_tokens = 0
    each = int(job.placement.ep.x) + int(job.placement.ep.y) - 2  # peers of a member in its expert group
    for member in range(dp):
        kinds = _gradient_peers(job, member).values()
        gradients = {other for both in kinds for to in both for other in to}
        with_gradients += len(gradients)
        with_tokens += each - sum(_share_experts_tokens(job, member, other) for other in gradients)
    return with_gradients, with_tokens


def _share_experts_tokens(job: Job, member: int, other: int) -> bool:
    """Whether the two are in one expert group, in one row or one column of its grid."""
    (_, mine, (a, b)), (_, theirs, (c, d)) = _split(job, member), _split(job, other)
    return mine == theirs and (a == c) != (b == d)


def _split(job: Job, member: int) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """A member's row length, its index among the GPUs with the same experts, and that in its expert group."""
    x, x_ep, y_ep = (int(v) for v in (job.placement.dp.x, job.placement.ep.x, job.placement.ep.y))
    outer, inner = divmod(member, x)
    (a, ep_outer), (b, ep_inner) = divmod(outer, y_ep), divmod(inner, x_ep)
    return x, (a, b), (ep_outer, ep_inner)


def data_peers(job: Job, member: int) -> dict[str, list[list[int]]]:
    """Receivers of a member of a data-parallel group, [inside its domain, over its rail], by kind: dp, and
    with experts experts_dp and ep.

    A member's position (outer, inner) in the group's grid splits into its position among the GPUs with the
    same experts and its position in the expert-parallel group.
    """
    by_kind = _gradient_peers(job, member)
    if job.model.moe is None:
        return by_kind
    x_ep, y_ep = int(job.placement.ep.x), int(job.placement.ep.y)
    x, (a, b), (ep_outer, ep_inner) = _split(job, member)
    both = peers(job.placement.ep, ep_outer * x_ep + ep_inner, all_to_all=True)
    tokens = [[(a * y_ep + o // x_ep) * x + b * x_ep + o % x_ep for o in to] for to in both]
    return {**by_kind, "ep": tokens}


def _gradient_peers(job: Job, member: int) -> dict[str, list[list[int]]]:
    """Those of `data_peers` that receive gradients."""
    placement = job.placement
    shared = list(peers(placement.dp, member, all_to_all=False))
    if job.model.moe is None:
        return {"dp": shared}
    x_ep, y_ep, same = int(placement.ep.x), int(placement.ep.y), int(placement.experts_dp.x)
    x, (a, b), (ep_outer, ep_inner) = _split(job, member)
    both = peers(placement.experts_dp, a * same + b, all_to_all=False)
    experts = [[(o // same * y_ep + ep_outer) * x + o % same * x_ep + ep_inner for o in to] for to in both]
    return {"dp": shared, "experts_dp": experts}
