"""The shipped catalogues: figures that physics and other catalogues allow, each with its source."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.gpus import catalogue
from engine.cluster.regions import (
    NEAR_KM,
    countries,
    distance_km,
    least_latency_ms,
    list_prices,
    path_between,
    paths,
    prices_in,
    regions,
)

ZONES = Path("/usr/share/zoneinfo/zone.tab")
PLACES = st.tuples(st.floats(-90, 90), st.floats(-180, 180))


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_a_gpu_is_faster_in_narrower_numbers_and_says_where_that_is_from(name: str) -> None:
    gpu = catalogue()[name]
    peaks = [
        gpu.peak_flops[kind] for kind in ("fp64", "fp32", "tf32", "bf16", "fp8") if kind in gpu.peak_flops
    ]
    assert peaks == sorted(peaks)
    assert gpu.source
    assert gpu.date[:4].isdigit()
    assert gpu.hbm_bytes_per_s > gpu.link_bytes_per_s >= gpu.host_bytes_per_s
    assert gpu.nic_bytes_per_s is None or gpu.nic_bytes_per_s <= gpu.host_bytes_per_s


def test_no_measured_path_is_faster_than_light_in_a_straight_fibre() -> None:
    for path in paths().values():
        ends = [(region.latitude, region.longitude) for region in path.ends]
        if path.latency_ms is not None:
            assert path.latency_ms >= least_latency_ms(ends[0], ends[1]), path


@pytest.mark.skipif(not ZONES.exists(), reason="the machine has no time zone table")
def test_a_region_stands_in_the_country_of_its_time_zone() -> None:
    lines = [line.split("\t") for line in ZONES.read_text().splitlines() if not line.startswith("#")]
    country_of = {line[2]: line[0] for line in lines}
    for region in regions().values():
        assert country_of[region.time_zone] == region.country, region
        assert region.country in countries()


def test_prices_are_of_known_gpu_types_and_spot_is_no_dearer() -> None:
    assert {price.gpu_type for price in list_prices()} <= set(catalogue())
    for price in list_prices():
        assert prices_in(price.region.name)[price.gpu_type] == price
        assert price.spot is None or 0 < price.spot <= price.on_demand + 1e-3


@given(PLACES, PLACES)
def test_distance_is_that_of_the_dot_product(a: tuple[float, float], b: tuple[float, float]) -> None:
    vectors = [
        (math.cos(la) * math.cos(lo), math.cos(la) * math.sin(lo), math.sin(la))
        for la, lo in ((math.radians(p[0]), math.radians(p[1])) for p in (a, b))
    ]
    dot = max(-1.0, min(1.0, sum(x * y for x, y in zip(*vectors, strict=True))))
    assert distance_km(a, b) == pytest.approx(6371.0 * math.acos(dot), abs=0.2)
    assert distance_km(a, b) == pytest.approx(distance_km(b, a))


@given(PLACES, PLACES)
def test_a_path_stands_for_places_near_its_ends_only(a: tuple[float, float], b: tuple[float, float]) -> None:
    path = path_between(a, b)
    if path:
        first, second = [(region.latitude, region.longitude) for region in path.ends]
        straight = max(distance_km(a, first), distance_km(b, second))
        crossed = max(distance_km(a, second), distance_km(b, first))
        assert min(straight, crossed) <= NEAR_KM


def test_the_path_of_two_cities_is_the_one_of_a_single_cloud() -> None:
    path = path_between((39.0, -77.5), (45.6, -121.2))  # Ashburn and The Dalles
    assert path
    assert {region.name for region in path.ends} == {"gcp:us-east4", "gcp:us-west1"}
    assert path.latency_ms == pytest.approx(28.7, abs=0.1)
    assert path_between((39.0, -77.5), (39.1, -77.4)) is None
    assert path_between((0.0, -30.0), (45.6, -121.2)) is None
