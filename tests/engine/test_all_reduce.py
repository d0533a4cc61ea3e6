"""How replicas sum: bytes and seconds against closed forms, and against DT-FM's Eq. 2."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.all_reduce import Replicas, all_reduce_s, domain_size, sent_shares
from engine.cluster.collectives import Rates, hierarchical_s, ring_all_reduce_s, sent_bytes
from engine.plan.placement.problem import data_cost_s, problem

SIZES = st.integers(1, 5)
RATE = st.floats(1e6, 1e12)


def uniform(x: int, y: int, inside: float, outside: float) -> Replicas:
    domain = np.arange(x * y) // x
    together = domain[:, None] == domain
    return Replicas(
        latency_s=np.zeros((x * y, x * y)), bytes_per_s=np.where(together, inside, outside), domain=x
    )


@given(x=SIZES, y=SIZES, inside=RATE, outside=RATE, nbytes=st.floats(1, 1e12))
def test_a_hierarchical_sum_takes_what_rail_only_says(
    x: int, y: int, inside: float, outside: float, nbytes: float
) -> None:
    rates = Rates(hb_bytes_per_s=inside, nic_bytes_per_s=outside)
    seconds = all_reduce_s("hierarchical", nbytes, uniform(x, y, inside, outside))
    assert seconds == pytest.approx(float(hierarchical_s("allreduce", nbytes, x, y, rates)))


@given(n=st.integers(1, 9), rate=RATE, parameters=st.floats(1, 1e11))
def test_a_ring_takes_what_atlas_says(n: int, rate: float, parameters: float) -> None:
    seconds = all_reduce_s("ring", 2 * parameters, uniform(1, n, rate, rate))
    assert seconds == pytest.approx(ring_all_reduce_s(parameters, n, rate))


@given(x=SIZES, y=SIZES)
def test_shares_add_up_to_what_each_rank_sends(x: int, y: int) -> None:
    n = x * y
    inside, outside = sent_bytes("allreduce", 1.0, x, y)
    for kind in ("ring", "hierarchical", "sharded"):
        shares = sent_shares(kind, n, x)  # type: ignore[arg-type]
        assert shares.sum(axis=1) == pytest.approx(np.full(n, 2 * (n - 1) / n))  # the least of any all-reduce
        assert shares.sum(axis=0) == pytest.approx(np.full(n, 2 * (n - 1) / n))
        assert not np.diag(shares).any()
    domain = np.arange(n) // x
    between = sent_shares("hierarchical", n, x) * (domain[:, None] != domain)
    assert between.sum(axis=1) == pytest.approx(np.full(n, outside))
    assert inside + outside == pytest.approx(2 * (n - 1) / n)


@st.composite
def networks(draw: st.DrawFn) -> Replicas:
    x, y = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n = x * y
    half = draw(st.lists(st.tuples(st.floats(0, 0.1), st.floats(1e6, 1e9)), min_size=n * n, max_size=n * n))
    latency, rate = (np.array(column).reshape(n, n) for column in zip(*half, strict=True))
    return Replicas(latency_s=(latency + latency.T) / 2, bytes_per_s=(rate + rate.T) / 2, domain=x)


@given(replicas=networks(), nbytes=st.floats(1e3, 1e9))
def test_a_sharded_sum_takes_at_most_what_eq_2_says(replicas: Replicas, nbytes: float) -> None:
    n = len(replicas)
    of = problem(replicas.latency_s, replicas.bytes_per_s, 1, nbytes, 0.0)
    in_turn = float(data_cost_s(of, np.arange(n)[None])[0])
    seconds = all_reduce_s("sharded", nbytes, replicas)
    assert seconds <= in_turn * (1 + 1e-12)
    if n == 2:
        assert seconds == pytest.approx(in_turn)


@given(replicas=networks(), nbytes=st.floats(1e3, 1e9))
def test_no_sum_is_faster_than_its_slowest_link(replicas: Replicas, nbytes: float) -> None:
    n = len(replicas)
    for kind in ("ring", "hierarchical", "sharded"):
        shares = sent_shares(kind, n, replicas.domain)  # type: ignore[arg-type]
        busiest = float((shares * nbytes / replicas.bytes_per_s).max())
        assert all_reduce_s(kind, nbytes, replicas) >= busiest * (1 - 1e-9)  # type: ignore[arg-type]


def test_without_a_link_a_sum_takes_for_ever() -> None:
    rate = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    apart = Replicas(latency_s=np.zeros((3, 3)), bytes_per_s=rate, domain=1)
    assert all_reduce_s("sharded", 1.0, apart) == all_reduce_s("ring", 1.0, apart) == np.inf


@given(replicas=st.integers(1, 300), most=st.integers(1, 300))
def test_a_domain_has_the_most_replicas_that_leave_no_rest(replicas: int, most: int) -> None:
    sizes = [x for x in range(1, replicas + 1) if replicas % x == 0 and x <= most]
    assert domain_size(replicas, most) == max(sizes)


def through_ports(x: int, y: int, link: float, port: float) -> Replicas:
    """Domains of x replicas on one node each; links without latency inside and between are equal."""
    return replace(
        uniform(x, y, link, link), node=np.arange(x * y) // x, port_bytes_per_s=np.full(x * y, port)
    )


@given(n=st.integers(2, 9), link=RATE, port=RATE, nbytes=st.floats(1, 1e12))
def test_a_port_carries_all_that_its_node_sends(n: int, link: float, port: float, nbytes: float) -> None:
    """Closed forms: a ring has one message a port, shards n − 1 of one n-th each, twice."""
    alone = through_ports(1, n, link, port)
    ring_s = 2 * (n - 1) * nbytes / n / min(link, port)
    assert all_reduce_s("ring", nbytes, alone) == pytest.approx(ring_s)
    shards_s = 2 * max(nbytes / n / link, (n - 1) * nbytes / n / port)
    assert all_reduce_s("sharded", nbytes, alone) == pytest.approx(shards_s)


@given(x=st.integers(2, 5), y=st.integers(2, 5), link=RATE, port=RATE, nbytes=st.floats(1, 1e12))
def test_the_rails_of_a_node_share_its_port(x: int, y: int, link: float, port: float, nbytes: float) -> None:
    inside_s = 2 * (x - 1) / x * nbytes / link
    rails_s = 2 * (y - 1) * nbytes / (x * y) / min(link, port / x)
    seconds = all_reduce_s("hierarchical", nbytes, through_ports(x, y, link, port))
    assert seconds == pytest.approx(inside_s + rails_s)


@given(replicas=networks(), nbytes=st.floats(1e3, 1e9), port=st.floats(1e5, 1e9))
def test_no_sum_is_faster_than_the_bytes_through_a_port(
    replicas: Replicas, nbytes: float, port: float
) -> None:
    n, x = len(replicas), replicas.domain
    node = np.arange(n) // x
    limited = replace(replicas, node=node, port_bytes_per_s=np.full(n, port))
    for kind in ("ring", "hierarchical", "sharded"):
        shares = sent_shares(kind, n, x)  # type: ignore[arg-type]
        away = shares * (node[:, None] != node)
        most = max(float(away[node == one].sum()) for one in node)
        seconds = all_reduce_s(kind, nbytes, limited)  # type: ignore[arg-type]
        assert seconds >= most * nbytes / port * (1 - 1e-9)
        assert seconds >= all_reduce_s(kind, nbytes, replicas) * (1 - 1e-9)  # type: ignore[arg-type]
