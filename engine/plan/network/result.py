"""The answer of `meridian network`, as docs/dev/contracts.md names its fields."""

from dataclasses import asdict, dataclass
from typing import Any

from engine.cluster.fabric import Fabric, Outages
from engine.plan.network.failures import Failure
from engine.plan.network.traffic import Job, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """Seconds of one collective at nominal rates, on rails and with spines."""

    op: str
    bytes: float
    x: int
    y: int
    rail_only_s: float
    rail_optimised_s: float

    @property
    def slowdown(self) -> float | None:
        """Rail-only over rail-optimised: what forwarding inside HB domains costs (Rail-only, §IV-B)."""
        return self.rail_only_s / self.rail_optimised_s if self.rail_optimised_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRow:
    """The fastest strategy for one size of HB domain; figures are None if none fits.

    ideal_s : the fastest if all GPUs share one HB domain. rail_optimised_s : this strategy with spines.
    """

    hb_domain: int
    feasible: bool
    reason: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    interleave: int | None = None
    micro_batch: int | None = None
    gpus_used: int | None = None
    iteration_s: float | None = None
    rail_optimised_s: float | None = None
    ideal_s: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    memory_gb_per_gpu: float | None = None
    parts_s: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """The rail-only fabric with spare switches, and what is then saved.

    most : spare switches with which it still costs no more than rail-optimised; None if they are free.
    """

    switches: int
    rail_only: Fabric
    cost_saving: float | None
    power_saving: float | None
    most: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricOutages:
    """What failing transceivers cost in a year, on both fabrics."""

    rail_optimised: Outages
    rail_only: Outages


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricPair:
    """Both fabrics for one size of HB domain; savings are None if rail-optimised costs nothing.

    spares, outages : None if the document does not ask for them.
    """

    hb_domain: int
    rail_optimised: Fabric
    rail_only: Fabric
    cost_saving: float | None
    power_saving: float | None
    spares: Spares | None = None
    outages: FabricOutages | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON object; what was not asked for is left out."""
        optional = ("spares", "outages")
        return {n: v for n, v in asdict(self).items() if v is not None or n not in optional}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkResult:
    """All requested answers. `fabric`, `traffic` and `failures` are of the first HB domain size."""

    collectives: tuple[CollectiveTime, ...]
    iterations: tuple[IterationRow, ...]
    fabrics: tuple[FabricPair, ...]
    traffic: Traffic | None
    failures: tuple[Failure, ...]
    job: Job | None

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `meridian network --json`."""
        return {
            "collectives": [asdict(collective) for collective in self.collectives],
            "iterations": [asdict(row) for row in self.iterations],
            "fabric": self.fabrics[0].as_dict(),
            "fabrics": [pair.as_dict() for pair in self.fabrics],
            "traffic": None if self.traffic is None else self.traffic.as_dict(),
            "failures": [failure.as_dict() for failure in self.failures],
        }
