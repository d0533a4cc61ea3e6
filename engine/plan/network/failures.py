"""Costs of the failure cases of the Rail-only paper (§IV-C): GPUs lost, and the iteration time after it.

A spare domain keeps the iteration time. Without one the job goes on with the remaining GPUs, on the fastest
strategy that fits, also with unequal numbers of microbatches. A domain with a hole still holds the boxes
(layout.place) that avoid it. To keep boxes small enough, domains are also tried as if they were any part of
themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from engine.cluster.collectives import Rates
from engine.cluster.fabric import leaf_ports
from engine.model.iteration import Machine, iteration
from engine.plan.network.strategies import (
    Chosen,
    Domains,
    Training,
    divisors,
    fastest_of_rest,
)

Design = Literal["rail_only", "rail_optimised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One case on one design.

    gpus_lost : GPUs that the job can no longer use, healthy ones left behind included.
    before_s : the iteration before the failure, on that design.
    iteration_s : without spares, on the remaining GPUs; None if nothing fits, with the `reason`.
    spared_iteration_s : with the spares that `recovery` needs.
    """

    case: str
    design: Design
    recovery: str
    gpus_lost: int
    spares: int
    before_s: float
    iteration_s: float | None
    spared_iteration_s: float
    reason: str | None = None

    @property
    def slowdown(self) -> float | None:
        """The iteration without spares over that before the failure."""
        return None if self.iteration_s is None else self.iteration_s / self.before_s

    def as_dict(self) -> dict[str, object]:
        """The row, with both times over that before the failure."""
        return {
            "case": self.case,
            "design": self.design,
            "recovery": self.recovery,
            "gpus_lost": self.gpus_lost,
            "spares": self.spares,
            "before_s": self.before_s,
            "iteration_s": self.iteration_s,
            "slowdown": self.slowdown,
            "spared_iteration_s": self.spared_iteration_s,
            "spared_slowdown": self.spared_iteration_s / self.before_s,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster before the failure, and the job on it."""

    training: Training
    machine: Machine
    gpus: int
    hb_domain: int
    switch_radix: int
    module: int
    before: Chosen
    spare_switches: int = 0

    @property
    def domains(self) -> int:
        return self.gpus // self.hb_domain


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    case: str
    design: Design
    recovery: str
    lost: int  # GPUs; the recovery takes as many spares
    left: tuple[tuple[int, int], ...]  # domains and GPUs left in each
    spared_s: float | None = None  # if a spare does not restore the iteration time


def failures(cluster: Cluster) -> tuple[Failure, ...]:
    """Every case of §IV-C on the designs that it names."""
    seen: dict[tuple[tuple[tuple[int, int], ...], bool], Chosen | str] = {}
    return tuple(_after(cluster, loss, seen) for loss in _losses(cluster))


def _losses(cluster: Cluster) -> Iterator[_Loss]:
    size, count = cluster.hb_domain, cluster.domains
    designs: tuple[Design, ...] = ("rail_only", "rail_optimised")
    for design in designs:
        yield _Loss(
            case="link",
            design=design,
            recovery="the GPU behind it is replaced",
            lost=1,
            left=_without(count, size, 1, 1),
        )
    yield from (_switch(cluster, design) for design in designs)
    if cluster.spare_switches:
        yield _Loss(
            case="rail switch, spare one",
            design="rail_only",
            recovery="a spare switch takes over, and no GPU is lost",
            lost=0,
            left=((count, size),),
        )
    for design in designs:
        yield _Loss(
            case="platform",
            design=design,
            recovery="its tasks move to a spare HB domain",
            lost=size,
            left=_without(count, size, 1, size),
        )
    if size > 1:
        yield from _single_gpu(cluster)


def _switch(cluster: Cluster, design: Design) -> _Loss:
    """A switch of the lowest tier fails: all GPUs behind it are lost.

    A rail with fewer GPUs than ports shares the switch with others, whose GPUs in the same domains are lost
    too.
    """
    joined = cluster.domains if design == "rail_only" else cluster.gpus
    ports = leaf_ports(joined, cluster.switch_radix)
    reached = min(cluster.domains, ports)
    rails = min(cluster.hb_domain, ports // reached)
    return _Loss(
        case="rail switch",
        design=design,
        recovery="its GPUs are replaced",
        lost=reached * rails,
        left=_without(cluster.domains, cluster.hb_domain, reached, rails),
    )


def _single_gpu(cluster: Cluster) -> Iterator[_Loss]:
    size, count = cluster.hb_domain, cluster.domains
    whole, hole, gone = ((count, size),), _without(count, size, 1, 1), _without(count, size, 1, size)
    idle = "an idle GPU of the same HB domain takes over"
    yield _Loss(
        case="GPU, idle one in its domain",
        design="rail_only",
        recovery=idle + ", moved to the rail by optical switches",
        lost=1,
        left=whole,
    )
    yield _Loss(
        case="GPU, idle one in its domain",
        design="rail_optimised",
        recovery=idle,
        lost=1,
        left=whole,
    )
    yield _Loss(
        case="GPU, domain full",
        design="rail_only",
        recovery="the whole HB domain moves to a spare one",
        lost=size,
        left=gone,
    )
    module = min(cluster.module, size)
    yield _Loss(
        case="GPU, domain full",
        design="rail_only",
        recovery=f"optical switches replace a module of {module} GPUs",
        lost=module,
        left=_without(count, size, 1, module),
    )
    yield _Loss(
        case="GPU, domain full",
        design="rail_optimised",
        recovery="a GPU of another HB domain takes over: the domain runs at NIC speed",
        lost=1,
        left=hole,
        spared_s=_at_nic_speed(cluster),
    )


def _without(count: int, size: int, hit: int, lost: int) -> tuple[tuple[int, int], ...]:
    """`count` domains of `size` GPUs, `hit` of which have lost `lost` each."""
    return ((count - hit, size), (hit, size - lost))


def _at_nic_speed(cluster: Cluster) -> float:
    """The iteration if one domain's internal traffic crosses NICs: all others wait for that domain."""
    nic = cluster.machine.rates.nic_bytes_per_s
    slow = replace(cluster.machine, rates=Rates(hb_bytes_per_s=nic, nic_bytes_per_s=nic), spines=True)
    training, strategies = cluster.training, cluster.before.strategies
    return float(iteration(training.model, training.how, strategies, training.batch, slow).total)


def _after(
    cluster: Cluster,
    loss: _Loss,
    seen: dict[tuple[tuple[tuple[int, int], ...], bool], Chosen | str],
) -> Failure:
    spines = loss.design == "rail_optimised"
    key = (loss.left, spines and cluster.training.model.moe is not None)  # dense models need no spines
    if key not in seen:
        seen[key] = _best_of_rest(cluster, loss.left, spines)
    best = seen[key]
    machine = replace(cluster.machine, spines=spines)
    training, strategies = cluster.training, cluster.before.strategies
    before = float(iteration(training.model, training.how, strategies, training.batch, machine).total)
    return Failure(
        case=loss.case,
        design=loss.design,
        recovery=loss.recovery,
        gpus_lost=loss.lost,
        spares=loss.lost,
        before_s=before,
        iteration_s=best.iteration_s if isinstance(best, Chosen) else None,
        spared_iteration_s=before if loss.spared_s is None else loss.spared_s,
        reason=None if isinstance(best, Chosen) else best,
    )


def _best_of_rest(cluster: Cluster, left: tuple[tuple[int, int], ...], spines: bool) -> Chosen | str:
    """The fastest strategy on the remaining GPUs, with the same micro-batch; given degrees may not fit."""
    machines = [
        replace(cluster.machine, hb_domain=size, spines=spines)
        for size in reversed(divisors(cluster.hb_domain))
    ]
    training = replace(cluster.training, micro_batch=int(cluster.before.strategies.micro_batch))
    best = fastest_of_rest(training, machines, Domains(size=cluster.hb_domain, groups=left))
    return best if isinstance(best, Chosen) else best.reason
