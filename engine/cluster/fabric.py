"""Rail fabrics: switches, transceivers, their cost and power (Rail-only, §V-E, Table II).

Both are folded Clos networks of full bisection with the fewest tiers that reach every GPU: a rail-optimised
fabric joins all GPUs, a rail-only fabric the GPUs of one rail, each rail by itself. In n tiers of switches
with r ports, the upper half of a switch's ports leads up, except in the last tier. So 2·(r/2)ⁿ GPUs fit, and
each takes 2n − 1 switch ports. Every link, the one to the NIC included, has a transceiver at both ends. Small
rails share switches, so switches are counted over the whole fabric.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

# any-to-any: nothing is known of domains, and every GPU reaches every other through its share of the network.
FabricKind = Literal["any-to-any", "rail-optimised", "rail-only"]
ANY_TO_ANY: FabricKind = "any-to-any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars and watts of a switch port and of a transceiver (400 Gbit/s; Rail-only, footnote 1)."""

    port_usd: float = 694.0
    transceiver_usd: float = 199.0
    port_w: float = 18.0
    transceiver_w: float = 9.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A fabric: its tiers and equipment. Dollars to buy, watts at peak."""

    tiers: int
    switches: int
    ports: int
    transceivers: int
    cost_usd: float
    power_w: float


def clos_tiers(gpus: int, radix: int) -> int:
    """Fewest tiers of a folded Clos of full bisection that joins `gpus` GPUs; 0 for a single one.

    Raises
    ------
    ValueError
        A radix below 3: two ports carry a GPU and its uplink, however many tiers there are.
    """
    if gpus <= 1:
        return 0
    if radix < 4 and gpus > radix:
        raise ValueError(f"radix {radix}: more than {radix} GPUs need at least 4 ports per switch")
    tiers = 1
    while clos_capacity(tiers, radix) < gpus:
        tiers += 1
    return tiers


def clos_capacity(tiers: int, radix: int) -> int:
    """GPUs that `tiers` tiers of switches with `radix` ports join at full bisection: 2·(r/2)ⁿ."""
    return radix if tiers == 1 else 2 * (radix // 2) ** tiers


def rail_optimised(gpus: int, radix: int, prices: Prices) -> Fabric:
    """The fabric in which any GPU reaches any other at line rate."""
    return _fabric(gpus, gpus, radix, prices)


def rail_only(gpus: int, hb_domain: int, radix: int, prices: Prices) -> Fabric:
    """The fabric that joins only GPUs of equal rank in their HB domains: one Clos a rail."""
    return _fabric(gpus, gpus // hb_domain, radix, prices)


def leaf_ports(joined: int, radix: int) -> int:
    """Ports that lead down to GPUs on a switch of the lowest tier, in a fabric that joins `joined` GPUs."""
    return radix if clos_tiers(joined, radix) <= 1 else radix // 2


def _fabric(gpus: int, joined: int, radix: int, prices: Prices) -> Fabric:
    tiers = clos_tiers(joined, radix)
    ports = gpus * max(0, 2 * tiers - 1)
    # An odd port of a switch stays empty if half of the ports lead up.
    used = radix if tiers <= 1 else 2 * (radix // 2)
    switches = math.ceil(ports / used)
    transceivers = 2 * tiers * gpus
    return Fabric(
        tiers=tiers,
        switches=switches,
        ports=switches * radix,
        transceivers=transceivers,
        cost_usd=switches * radix * prices.port_usd + transceivers * prices.transceiver_usd,
        power_w=switches * radix * prices.port_w + transceivers * prices.transceiver_w,
    )


def with_spares(fabric: Fabric, spares: int, radix: int, prices: Prices) -> Fabric:
    """The fabric with further switches, powered and with a transceiver in each port (Rail-only, §IV-C).

    Each can take over for a failed switch; optical switches or hands move the links.
    """
    ports = spares * radix
    return replace(
        fabric,
        switches=fabric.switches + spares,
        ports=fabric.ports + ports,
        transceivers=fabric.transceivers + ports,
        cost_usd=fabric.cost_usd + ports * (prices.port_usd + prices.transceiver_usd),
        power_w=fabric.power_w + ports * (prices.port_w + prices.transceiver_w),
    )


def most_spares(fabric: Fabric, dearer: Fabric, radix: int, prices: Prices) -> int | None:
    """The most spare switches with which a fabric costs no more than a dearer one; None if they are free."""
    each = radix * (prices.port_usd + prices.transceiver_usd)
    return None if each == 0 else math.floor((dearer.cost_usd - fabric.cost_usd) / each)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransceiverFailures:
    """How often transceivers fail, and what a failure costs beside the new one.

    per_year : share of them that fail in a year.  repair_h : until a failed one is replaced.
    gpu_usd_per_h : price of the GPU that waits behind it.
    """

    per_year: float
    repair_h: float
    gpu_usd_per_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages:
    """Expected transceiver failures of a fabric in a year, and their dollars."""

    failures: float
    gpu_hours_lost: float
    replaced_usd: float
    lost_usd: float


def outages(fabric: Fabric, gpus: int, rule: TransceiverFailures, prices: Prices) -> Outages:
    """What failing transceivers cost in a year.

    Of a fabric's 2 · tiers · N transceivers, 2N are on links between a GPU and its switch. If one of these
    fails, the GPU is lost until it is replaced (Rail-only, §IV-C). The others have links beside them.
    """
    failures = fabric.transceivers * rule.per_year
    hours = (2 * gpus if fabric.tiers else 0) * rule.per_year * rule.repair_h
    return Outages(
        failures=failures,
        gpu_hours_lost=hours,
        replaced_usd=failures * prices.transceiver_usd,
        lost_usd=hours * rule.gpu_usd_per_h,
    )
