"""The engine's catalogues as the pages show them: regions to begin a data centre from, GPU types, what the
catalogue measured between two data centres."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.cluster.gpus import Gpu, catalogue
from engine.cluster.regions import (
    EGRESS_SOURCE,
    PATHS_SOURCE,
    PRICES_SOURCE,
    REGIONS_SOURCE,
    ListPrice,
    Region,
    countries,
    least_latency_ms,
    list_prices,
    path_between,
    prices_in,
    regions,
)
from webapp.inventory.models import DataCenter

FORMATS = ("fp8", "bf16", "fp16", "tf32", "fp32", "fp64")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRow:
    """A region with its list prices, cheapest first."""

    region: Region
    prices: tuple[ListPrice, ...]

    @property
    def country(self) -> str:
        return countries()[self.region.country]

    @property
    def least_price(self) -> float | None:
        return self.prices[0].on_demand if self.prices else None


def region_rows() -> list[RegionRow]:
    """Every region of the catalogue."""
    return [
        RegionRow(
            region=region,
            prices=tuple(sorted(prices_in(region.name).values(), key=lambda price: price.on_demand)),
        )
        for region in regions().values()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A GPU type in the units of people: 10^12 FLOP/s, GiB, 10^9 bytes/s; None where it has no such thing."""

    gpu: Gpu
    have: int  # GPUs of this type in the pools that the reader sees

    @property
    def peaks(self) -> dict[str, float]:
        """10^12 FLOP/s of the number formats that it has, narrowest first."""
        flops = self.gpu.peak_flops
        return {name: flops[name] / 1e12 for name in FORMATS if name in flops}

    @property
    def half(self) -> float | None:
        """In 16 bits: bf16 where it has that, else fp16."""
        return self.peaks.get("bf16") or self.peaks.get("fp16")

    @property
    def memory_gib(self) -> float:
        return self.gpu.memory_bytes / 2**30

    @property
    def hbm_gb_s(self) -> float:
        return self.gpu.hbm_bytes_per_s / 1e9

    @property
    def host_gb_s(self) -> float:
        return self.gpu.host_bytes_per_s / 1e9

    @property
    def link_gb_s(self) -> float:
        return self.gpu.link_bytes_per_s / 1e9

    @property
    def nic_gb_s(self) -> float | None:
        return None if self.gpu.nic_bytes_per_s is None else self.gpu.nic_bytes_per_s / 1e9


def gpu_rows(have: dict[str, int]) -> list[GpuRow]:
    """Every GPU type of the catalogue, with how many the reader has of it."""
    return [GpuRow(gpu=gpu, have=have.get(name, 0)) for name, gpu in catalogue().items()]


def prices_of(gpu_type: str) -> list[ListPrice]:
    """List prices of one GPU type, cheapest first."""
    return sorted(
        (price for price in list_prices() if price.gpu_type == gpu_type),
        key=lambda price: (price.on_demand, price.region.name),
    )


def region_values(name: str, gpu_type: str = "") -> dict[str, Any]:
    """Values of the form of a data centre in the region called `name`; none where there is no such region."""
    region = regions().get(name)
    if region is None:
        return {}
    prices = prices_in(name)
    chosen = (
        gpu_type
        if gpu_type in catalogue()
        else min(prices, key=lambda kind: prices[kind].on_demand, default="")
    )
    return {
        "name": region.code,
        "place": region.place,
        "country": region.country,
        "time_zone": region.time_zone,
        "latitude": region.latitude,
        "longitude": region.longitude,
        "region": name,
        **({"gpu_type": chosen} if chosen else {}),
        **({"price_per_gpu_hour": prices[chosen].on_demand} if chosen in prices else {}),
    }


def region_notes(values: Mapping[str, Any]) -> list[str]:
    """Where values that `region_values` filled in are from."""
    region = regions().get(values.get("region", ""))
    if region is None:
        return []
    lines = [f"Location and time zone of {region.name}: {REGIONS_SOURCE}."]
    if "price_per_gpu_hour" in values:
        price = prices_in(region.name)[values["gpu_type"]]
        lines.append(f"Price: {price.instance} on demand, {PRICES_SOURCE}. Enter what you pay.")
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What the catalogue says of a link between two data centres.

    values : of the link's form, as text; empty where nothing was measured between such places.
    why : the same in a sentence, with source and date.
    least_ms : what light in a straight fibre takes; None where a place is unknown.
    """

    values: dict[str, str]
    why: str
    least_ms: float | None


def suggestion(a: DataCenter, b: DataCenter) -> Suggestion:
    """What the catalogue offers for a link between `a` and `b`."""
    missing = [dc.name for dc in (a, b) if position(dc) is None]
    here, there = position(a), position(b)
    if here is None or there is None:
        names = " and ".join(missing)
        has = "has" if len(missing) == 1 else "have"
        why = f"No suggestion from the catalogue: {names} {has} no coordinates."
        return Suggestion(values={}, why=why, least_ms=None)
    least = least_latency_ms(here, there)
    path = path_between(here, there)
    if path is None:
        why = "The catalogue has no measurement between locations near these two."
        return Suggestion(values={}, why=why, least_ms=least)
    suggested = {
        "latency_ms": path.latency_ms,
        "bandwidth_gbps": path.bandwidth_gbps,
        "egress_price_per_gb": path.egress_price_per_gb,
    }
    values = {name: f"{value:.4g}" for name, value in suggested.items() if value is not None}
    ends = " and ".join(region.name for region in path.ends)
    why = f"Between {ends}: {PATHS_SOURCE}; egress {EGRESS_SOURCE}."
    return Suggestion(values=values, why=why, least_ms=least)


def position(dc: DataCenter) -> tuple[float, float] | None:
    """Latitude and longitude of `dc` in degrees; None where they are not known."""
    if dc.latitude is None or dc.longitude is None:
        return None
    return dc.latitude, dc.longitude


def known_countries(codes: Iterable[str]) -> list[tuple[str, str]]:
    """(code, name) of `codes` by name, for a filter."""
    return sorted(((code, countries()[code]) for code in codes if code), key=lambda pair: pair[1])


def position_text(dc: DataCenter) -> str:
    """Latitude and longitude as people write them; empty where they are not known."""
    place = position(dc)
    if place is None:
        return ""
    (latitude, longitude) = place
    south, west = latitude < 0, longitude < 0
    return f"{abs(latitude):.2f}° {'S' if south else 'N'}, {abs(longitude):.2f}° {'W' if west else 'E'}"
