"""Collectives against message-by-message simulations; fabrics against explicit counts and known fat trees."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.collectives import Rates, full_bisection_s, hierarchical_s, ring_all_reduce_s, sent_bytes
from engine.cluster.fabric import Prices, clos_capacity, clos_tiers, leaf_ports, rail_only, rail_optimised

GRIDS = [(x, y) for x in (1, 2, 3, 4) for y in (1, 2, 3, 4)]
RATES = Rates(hb_bytes_per_s=300e9, nic_bytes_per_s=25e9)


def ring(members: list[int], have: dict[int, set], sent: Counter, network: str) -> None:
    """A ring all-gather: in each round every member hands on what it got in the round before."""
    fresh = {m: set(have[m]) for m in members}
    for _ in range(len(members) - 1):
        passed = {}
        for here, there in zip(members, members[1:] + members[:1], strict=True):
            sent[here, network] += len(fresh[here])
            passed[there] = fresh[here] - have[there]
        for member, chunks in passed.items():
            have[member] |= chunks
        fresh = passed


@pytest.mark.parametrize(("x", "y"), GRIDS)
def test_a_hierarchical_all_gather_moves_what_eq_1_says(x: int, y: int) -> None:
    have = {gpu: {gpu} for gpu in range(x * y)}  # GPU gpu = domain · x + rank
    sent: Counter = Counter()
    for rank in range(x):
        ring([domain * x + rank for domain in range(y)], have, sent, "rail")
    for domain in range(y):
        ring([domain * x + rank for rank in range(x)], have, sent, "hb")
    assert all(have[gpu] == set(range(x * y)) for gpu in have)
    inside, outside = sent_bytes("allgather", x * y, x, y)  # chunks of size 1
    assert {sent[gpu, "hb"] for gpu in have} == {inside}
    assert {sent[gpu, "rail"] for gpu in have} == {outside}


@pytest.mark.parametrize(("x", "y"), GRIDS)
@pytest.mark.parametrize("forwarded", [True, False])
def test_an_all_to_all_moves_what_eqs_2_and_3_say(x: int, y: int, forwarded: bool) -> None:
    sent: Counter = Counter()
    for (a, i), (b, j) in itertools.permutations(list(itertools.product(range(y), range(x))), 2):
        if a == b:
            sent[a, i, "hb"] += 1
        elif not forwarded or i == j:
            sent[a, i, "nic"] += 1
        else:  # along the sender's rail, then inside the receiver's domain
            sent[a, i, "nic"] += 1
            sent[b, i, "hb"] += 1
    inside, outside = sent_bytes("all_to_all", 1, x, y, forwarded=forwarded)
    assert all(sent[a, i, "hb"] == inside for a in range(y) for i in range(x))
    assert all(sent[a, i, "nic"] == outside for a in range(y) for i in range(x))


def test_hand_computed_times() -> None:
    # 1 GB on 8 × 16 A100s: 15/(8·16)/25 s + 7/8/300 s, and the all-reduce twice that.
    seconds = 15 / 128 / 25 + 7 / 8 / 300
    assert hierarchical_s("allgather", 1e9, 8, 16, RATES) == pytest.approx(seconds)
    assert hierarchical_s("reduce_scatter", 1e9, 8, 16, RATES) == pytest.approx(seconds)
    assert full_bisection_s("allreduce", 1e9, 8, 16, RATES) == pytest.approx(2 * seconds)
    assert full_bisection_s("all_to_all", 1e6, 8, 16, RATES) == pytest.approx(120e6 / 25e9)
    assert hierarchical_s("all_to_all", 1e6, 8, 16, RATES) == pytest.approx(120e6 / 25e9 + 112e6 / 300e9)


@given(st.integers(1, 64), st.floats(1, 1e12))
def test_in_one_network_it_is_the_plain_ring(ranks: int, parameters: float) -> None:
    plain = ring_all_reduce_s(parameters, ranks, 25e9)
    assert hierarchical_s("allreduce", 2 * parameters, 1, ranks, RATES) == pytest.approx(plain)
    same = Rates(hb_bytes_per_s=25e9, nic_bytes_per_s=25e9)
    for x in (d for d in range(1, ranks + 1) if ranks % d == 0):
        assert hierarchical_s("allreduce", 2 * parameters, x, ranks // x, same) == pytest.approx(plain)


@pytest.mark.parametrize("radix", [4, 6, 8, 64])
def test_full_fat_trees_have_their_known_counts(radix: int) -> None:
    half = radix // 2
    three = rail_optimised(2 * half**3, radix, Prices())
    assert (three.tiers, three.switches, three.transceivers) == (3, 5 * half**2, 12 * half**3)
    two = rail_optimised(2 * half**2, radix, Prices())
    assert (two.tiers, two.switches, two.transceivers) == (2, 3 * half, 8 * half**2)
    one = rail_optimised(radix, radix, Prices())
    assert (one.tiers, one.switches, one.transceivers) == (1, 1, 2 * radix)


@given(gpus=st.integers(1, 10_000_000), radix=st.integers(4, 512))
def test_the_fewest_tiers_that_reach(gpus: int, radix: int) -> None:
    tiers = clos_tiers(gpus, radix)
    if gpus == 1:
        assert tiers == 0
        return
    assert clos_capacity(tiers, radix) >= gpus
    assert tiers == 1 or clos_capacity(tiers - 1, radix) < gpus


@given(domains=st.integers(1, 5000), k=st.integers(1, 512), radix=st.integers(4, 512))
def test_rails_never_cost_more_than_the_whole(domains: int, k: int, radix: int) -> None:
    full = rail_optimised(domains * k, radix, Prices())
    rails = rail_only(domains * k, k, radix, Prices())
    assert rails.tiers <= full.tiers
    assert rails.cost_usd <= full.cost_usd
    assert rails.power_w <= full.power_w
    links = rails.transceivers // 2  # each ends in a port, those between switches in two
    assert rails.switches * radix >= 2 * links - domains * k * (rails.tiers > 0)
    assert leaf_ports(domains, radix) in (radix, radix // 2)


def test_prices_multiply() -> None:
    free = rail_only(1024, 8, 64, Prices(port_usd=0, transceiver_usd=0, port_w=0, transceiver_w=0))
    assert (free.cost_usd, free.power_w) == (0, 0)
    fabric = rail_only(1024, 8, 64, Prices(port_usd=1, transceiver_usd=0, port_w=0, transceiver_w=1))
    assert fabric.cost_usd == fabric.switches * 64
    assert fabric.power_w == fabric.transceivers


def test_two_ports_join_two_gpus_and_no_more() -> None:
    assert clos_tiers(2, 2) == 1
    with pytest.raises(ValueError, match="at least 4 ports"):
        clos_tiers(3, 2)
