"""How many connections: the choice against a model of the link, and opened and retired on a real one."""

import contextlib
import math
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InputError
from engine.transport import Peer
from engine.transport.tuning import MOST_AUTO_CONNECTIONS, Tuner, first_choice
from tests.runtime.transport_pairs import endpoint, in_parallel
from tests.waiting import LIMIT_S, until

MBIT = 1e6 / 8


@pytest.mark.parametrize(("latency_ms", "connections"), [(10, 5), (20, 9), (30, 13), (40, 17)])
def test_the_first_choice_is_that_of_atlas(latency_ms, connections):
    assert first_choice(2 * latency_ms / 1e3, 5000 * MBIT) == connections


def settled(tuner: Tuner, rate, samples: int = 120) -> list[int]:
    """Numbers of connections over time on a link that carries rate(n) with n of them."""
    counts = []
    for _ in range(samples):
        counts.append(tuner.sample(rate(tuner.connections), tuner.connections))
    return counts


@given(
    single=st.floats(5e6, 200e6), cap=st.floats(10e6, 1e9), first=st.integers(1, 64), seed=st.integers(0, 99)
)
def test_with_a_cap_the_link_is_filled_and_connections_are_few(single, cap, first, seed):
    rng = random.Random(seed)
    counts = settled(Tuner(first, cap), lambda n: min(n * single, cap) * rng.uniform(0.99, 1.01), samples=400)
    reach = min(MOST_AUTO_CONNECTIONS * single, cap)
    late = sorted(counts[-60:])
    median = late[len(late) // 2]
    assert median * single >= 0.85 * reach
    assert median <= max(math.ceil(cap / single) * 1.15 + 1, 2)


@given(single=st.floats(5e6, 200e6), limit=st.floats(10e6, 1e9))
def test_without_a_cap_it_climbs_until_more_brings_nothing(single, limit):
    counts = settled(Tuner(4, None), lambda n: min(n * single, limit), samples=60)
    assert max(counts) * single >= 0.95 * min(limit, MOST_AUTO_CONNECTIONS * single)
    assert counts[-1] <= max(4, 2 * math.ceil(limit / single))


def test_what_a_link_cannot_reach_is_not_chased():
    """The cap in the inventory is more than the network gives: adding connections stops."""
    counts = settled(Tuner(8, 1e9), lambda n: min(n * 50e6, 400e6), samples=300)
    assert sum(count > 8 for count in counts) < 30


def test_when_the_window_falls_connections_are_added():
    tuner = Tuner(4, 400e6)
    assert settled(tuner, lambda n: min(n * 100e6, 400e6), 40)[-1] in (3, 4, 5)
    assert settled(tuner, lambda n: min(n * 25e6, 400e6), 120)[-1] >= 14


@pytest.mark.parametrize("wishes", [0, 1])
def test_connections_are_opened_and_retired_while_messages_pass(wishes):
    """Either side may wish; the higher rank dials."""
    ends = (endpoint(0), endpoint(1))
    with contextlib.closing(ends[0]), contextlib.closing(ends[1]):
        in_parallel(
            2,
            lambda r: ends[r].connect(
                [Peer(rank=1 - r, address=ends[1 - r].address, connections="auto")], 10
            ),
        )
        links = [ends[r]._links[1 - r] for r in range(2)]
        for link in links:
            link._tune = lambda: None  # the test wishes instead
        serial = iter(range(1000))
        for count in (5, 2, 4):
            wanted = threading.Event()
            ends[wishes].call(lambda count=count, wanted=wanted: (links[wishes]._want(count), wanted.set()))
            assert wanted.wait(LIMIT_S)
            done = False
            while not done:
                tag = (next(serial),)
                message = random.Random(tag[0]).randbytes(500_000)
                receive = ends[1].post_receive(0, tag)
                ends[0].send(1, tag, message)
                receive.wait(LIMIT_S)
                assert receive.buffer == message
                done = all(end.traffic()[0].connections == count for end in ends)
            until(lambda count=count: all(len(link._connections) == count + 1 for link in links))
        assert all(end.traffic()[0].reconnects == 0 for end in ends)


def test_absurd_figures_of_a_peer_are_refused_by_name():
    for field, value in {"connections": 0, "cap_bytes_per_s": -1.0}.items():
        with pytest.raises(InputError) as refused:
            Peer(rank=1, address=("127.0.0.1", 1), **{field: value})
        assert refused.value.field == field
