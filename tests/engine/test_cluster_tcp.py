"""TCP over a WAN, against the figures that the Atlas paper prints."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster import tcp
from engine.cluster.cluster import WanLink
from engine.cluster.collectives import ring_all_reduce_s

TABLE_1_MBPS = {10: 1220, 20: 600, 30: 396, 40: 293}
FIVE_GBPS = 5e9 / 8


@pytest.mark.parametrize(("latency_ms", "mbps"), TABLE_1_MBPS.items())
def test_one_window_a_round_trip_gives_table_1(latency_ms: int, mbps: int) -> None:
    assert tcp.single_connection(latency_ms / 1e3) * 8e-6 == pytest.approx(mbps, rel=0.021)


def test_the_shipped_table_is_table_1() -> None:
    shipped = {round(s * 1e3): rate * 8e-6 for s, rate in tcp.measured_single_connection().items()}
    assert shipped == pytest.approx(TABLE_1_MBPS)


def test_connections_for_5_gbps() -> None:
    measured = [tcp.connections_needed(FIVE_GBPS, mbps * 1e6 / 8) for mbps in TABLE_1_MBPS.values()]
    assert measured == [5, 9, 13, 18]
    assert tcp.connections_needed(FIVE_GBPS, tcp.single_connection(0.040)) == 17


@given(latency_s=st.floats(1e-4, 1.0), cap=st.floats(1e3, 1e12), connections=st.integers(1, 500))
def test_bandwidth_grows_with_connections_up_to_the_cap(
    latency_s: float, cap: float, connections: int
) -> None:
    fewer = tcp.bandwidth(latency_s, cap, connections)
    assert fewer <= tcp.bandwidth(latency_s, cap, connections + 1) <= cap
    enough = tcp.connections_needed(cap, tcp.single_connection(latency_s))
    assert tcp.bandwidth(latency_s, cap, enough) == pytest.approx(cap)
    assert enough == 1 or tcp.bandwidth(latency_s, cap, enough - 1) < cap
    assert tcp.bandwidth(latency_s, cap) == cap


def test_without_latency_one_connection_fills_the_cap() -> None:
    assert tcp.bandwidth(0.0, 1e9, 1) == 1e9
    assert tcp.connections_needed(1e9, tcp.single_connection(0.0)) == 1


def test_a_link_joins_two_data_centres() -> None:
    with pytest.raises(ValueError, match="two different"):
        WanLink(ends=frozenset({"a"}), latency_s=0.01, cap_bytes_per_s=1e9)
    link = WanLink(ends=frozenset({"a", "b"}), latency_s=0.04, cap_bytes_per_s=FIVE_GBPS, connections=1)
    assert link.bytes_per_s == pytest.approx(293e6 / 8, rel=0.021)


def test_ring_all_reduce_by_hand() -> None:
    # 412 M parameters, 6 nodes, 293 Mbps: 4·412e6·5/6 bytes at 36.6 MB/s.
    assert ring_all_reduce_s(412e6, 6, 293e6 / 8) == pytest.approx(37.497, rel=1e-4)
    assert ring_all_reduce_s(412e6, 1, 1.0) == 0
    assert math.isclose(ring_all_reduce_s(1e9, 2, 12.5e9), 0.16)
