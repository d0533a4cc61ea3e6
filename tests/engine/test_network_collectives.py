"""Collectives against message-by-message simulations; fabrics against explicit counts and known fat trees."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.collectives import Rates, full_bisection_s, hierarchical_s, ring_all_reduce_s, sent_bytes
from engine.cluster.fabric import (
    Prices,
    TransceiverFailures,
    clos_capacity,
    clos_tiers,
    leaf_ports,
    most_spares,
    outages,
    rail_only,
    rail_optimised,
    with_spares,
)

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


@given(
    gpus=st.sampled_from([64, 1024, 32_768]),
    k=st.sampled_from([8, 16, 64]),
    radix=st.sampled_from([16, 64, 128]),
    spares=st.integers(0, 5000),
)
def test_spare_switches_cost_what_their_ports_and_transceivers_do(
    gpus: int, k: int, radix: int, spares: int
) -> None:
    full, rails = rail_optimised(gpus, radix, Prices()), rail_only(gpus, k, radix, Prices())
    spared = with_spares(rails, spares, radix, Prices())
    assert spared.switches - rails.switches == spares
    assert spared.cost_usd - rails.cost_usd == pytest.approx(spares * radix * (694 + 199))
    assert spared.power_w - rails.power_w == pytest.approx(spares * radix * (18 + 9))
    most = most_spares(rails, full, radix, Prices())
    assert most is not None
    assert (spared.cost_usd <= full.cost_usd * (1 + 1e-12)) == (spares <= most)


def test_free_spares_have_no_most() -> None:
    free = Prices(port_usd=0, transceiver_usd=0)
    rails = rail_only(64, 8, 16, free)
    assert most_spares(rails, rails, 16, free) is None


@given(gpus=st.integers(2, 100_000), radix=st.sampled_from([16, 64]), rate=st.floats(0.001, 1))
def test_transceivers_fail_on_each_link_and_cost_a_gpu_only_on_its_own(
    gpus: int, radix: int, rate: float
) -> None:
    """Counted link by link: one from each GPU to its switch, one more for each further tier."""
    rule = TransceiverFailures(per_year=rate, repair_h=5, gpu_usd_per_h=3)
    fabric = rail_optimised(gpus, radix, Prices())
    links = [tier for _ in range(gpus) for tier in range(fabric.tiers)] if gpus < 1000 else None
    counts = outages(fabric, gpus, rule, Prices())
    if links is not None:
        assert counts.failures == pytest.approx(rate * 2 * len(links))
        assert counts.gpu_hours_lost == pytest.approx(rate * 2 * links.count(0) * 5)
    assert counts.replaced_usd == pytest.approx(counts.failures * 199)
    assert counts.lost_usd == pytest.approx(counts.gpu_hours_lost * 3)
    assert outages(rail_only(gpus, gpus, radix, Prices()), gpus, rule, Prices()).failures == 0


@pytest.mark.parametrize(("x", "y"), GRIDS[1:])
def test_forwarding_slows_an_all_to_all_by_the_ratio_of_the_rates_at_most(x: int, y: int) -> None:
    """§IV-B: 1 + y(x−1)/(x(y−1)) · C_S/C_F where NICs are the slowest, so 1 + C_S/C_F on a square grid."""
    if y == 1:
        return
    slower = hierarchical_s("all_to_all", 1.0, x, y, RATES) / full_bisection_s("all_to_all", 1.0, x, y, RATES)
    assert slower == pytest.approx(1 + y * (x - 1) / (x * (y - 1)) * 25 / 300)
