"""Possible locations of data centres: countries, cloud regions, measurements between them, list prices.

Figures, sources and dates: engine/data/regions/SOURCE.md.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

EARTH_RADIUS_KM = 6371.0
FIBRE_KM_PER_MS = 200.0  # light in glass, two thirds of its speed in vacuum
NEAR_KM = 120.0  # one city: locations this near to a region have its latencies to well under 1 ms

REGIONS_SOURCE = "the cloud's own list of regions, 2025; coordinates are those of the location it names"
PATHS_SOURCE = "Skyplane's measurements (ping, April 2022; iperf3 over 64 connections, January 2022)"
EGRESS_SOURCE = "list prices of May 2022, collected by Skyplane"
PRICES_SOURCE = "list prices of 2025–2026, collected by SkyPilot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region of a public cloud. `name` is `<cloud>:<region>`, as in aws:eu-north-1."""

    name: str
    place: str
    country: str
    latitude: float
    longitude: float
    time_zone: str

    @property
    def cloud(self) -> str:
        return self.name.partition(":")[0]

    @property
    def code(self) -> str:
        """The cloud's own name of it."""
        return self.name.partition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The measurement between two regions; None without one.

    latency_ms : one way, half of the measured round trip.
    bandwidth_gbps : of one pair of machines over 64 TCP connections, the lower of both directions, received.
    egress_price_per_gb : list price in dollars, the dearer direction.
    """

    ends: tuple[Region, Region]
    latency_ms: float | None
    bandwidth_gbps: float | None
    egress_price_per_gb: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    """Dollars per hour of one GPU in a region; `spot` is None if none was listed."""

    region: Region
    gpu_type: str
    instance: str
    on_demand: float
    spot: float | None


@cache
def countries() -> dict[str, str]:
    """English names by ISO 3166-1 alpha-2 code."""
    return {row["code"]: row["name"] for row in _rows("countries")}


@cache
def regions() -> dict[str, Region]:
    """Every known region by name."""
    return {
        row["name"]: Region(
            name=row["name"],
            place=row["place"],
            country=row["country"],
            latitude=float(row["latitude"]),
            longitude=float(row["longitude"]),
            time_zone=row["time_zone"],
        )
        for row in _rows("regions")
    }


@cache
def paths() -> dict[frozenset[str], Path]:
    """Measurements by pair of region names."""
    known = regions()
    return {
        frozenset((row["a"], row["b"])): Path(
            ends=(known[row["a"]], known[row["b"]]),
            latency_ms=_half(_number(row["rtt_ms"])),
            bandwidth_gbps=_number(row["bandwidth_gbps"]),
            egress_price_per_gb=_number(row["egress_usd_per_gb"]),
        )
        for row in _rows("paths")
    }


@cache
def list_prices() -> tuple[ListPrice, ...]:
    """Every known list price."""
    return tuple(
        ListPrice(
            region=regions()[row["region"]],
            gpu_type=row["gpu_type"],
            instance=row["instance"],
            on_demand=float(row["usd_per_gpu_hour"]),
            spot=_number(row["spot_usd_per_gpu_hour"]),
        )
        for row in _rows("prices")
    )


def prices_in(region: str) -> dict[str, ListPrice]:
    """List prices in the region called `region`, by GPU type."""
    return {price.gpu_type: price for price in list_prices() if price.region.name == region}


def path_between(a: tuple[float, float], b: tuple[float, float]) -> Path | None:
    """The measured path that represents one from `a` to `b` (latitude, longitude in degrees), if there is
    one.

    Regions within 120 km of either location count, nearest first, those of one cloud before mixed ones. A
    path without a latency does not count. Locations in one region have no path.
    """
    measured = [
        (first.cloud != second.cloud, far_a + far_b, path)
        for far_a, first in _near(a)
        for far_b, second in _near(b)
        if (path := paths().get(frozenset((first.name, second.name)))) and path.latency_ms is not None
    ]
    if not measured or distance_km(a, b) < NEAR_KM:
        return None
    return min(measured, key=lambda each: (*each[:2], each[2].ends[0].name, each[2].ends[1].name))[2]


def distance_km(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Great-circle distance of two locations (latitude, longitude in degrees), by the haversine formula."""
    (south, west), (north, east) = [
        (math.radians(location[0]), math.radians(location[1])) for location in (a, b)
    ]
    across = math.cos(south) * math.cos(north) * math.sin((east - west) / 2) ** 2
    half = math.sin((north - south) / 2) ** 2 + across
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, half)))


def least_latency_ms(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Time of light in a straight fibre from `a` to `b`, one way: a lower bound for any link between them."""
    return distance_km(a, b) / FIBRE_KM_PER_MS


def _near(location: tuple[float, float]) -> Iterator[tuple[float, Region]]:
    for region in regions().values():
        away = distance_km(location, (region.latitude, region.longitude))
        if away <= NEAR_KM:
            yield away, region


def _number(text: str) -> float | None:
    return float(text) if text else None


def _half(value: float | None) -> float | None:
    return None if value is None else value / 2


def _rows(name: str) -> list[dict[str, str]]:
    text = files("engine").joinpath(f"data/regions/{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
