"""The emulated link as arithmetic: exact times, without a clock."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InputError
from engine.transport import LinkShape
from engine.transport.shaper import LARGEST_CHUNK, PairShaper, Slot, chunk_bytes

MBIT = 1e6 / 8
WINDOW = 23.9e6 / 8  # bytes: what Table 1 of Atlas amounts to
shapes = st.builds(
    LinkShape,
    one_way_delay_s=st.floats(0.001, 0.2),
    cap_bytes_per_s=st.floats(1e6, 2e9),
    window_bytes=st.floats(1e5, 1e8),
    connections=st.integers(1, 40),
)


def passage(shape: LinkShape, message_bytes: int, ready: float = 0.0) -> list[Slot]:
    shaper = PairShaper(shape, shape.connection_count)
    chunk = chunk_bytes(message_bytes, shape.connection_count)
    sizes = [min(chunk, message_bytes - at) for at in range(0, message_bytes, chunk)]
    return [shaper.take(size, ready) for size in sizes]


@given(shape=shapes, factor=st.floats(1, 20))
def test_a_link_that_becomes_slower_is_so_from_then_on(shape, factor):
    shaper, slow = (PairShaper(shape, shape.connection_count) for _ in range(2))
    assert shaper.take(10**6, 0.0) == slow.take(10**6, 0.0)
    slow.reshape(shape.slower(factor))
    begin = 10.0 + 10**6 / shape.connection_bytes_per_s
    before, after = shaper.take(10**6, begin), slow.take(10**6, begin)
    assert after.end - after.start == pytest.approx(factor * (before.end - before.start))
    assert after.due - after.end == pytest.approx(before.due - before.end)


@pytest.mark.parametrize(("delay_ms", "paper_mbps"), [(10, 1220), (20, 600), (30, 396), (40, 293)])
def test_one_connection_has_the_rate_of_atlas_table_1(delay_ms, paper_mbps):
    delay_s = delay_ms / 1e3
    shape = LinkShape(
        one_way_delay_s=delay_s, cap_bytes_per_s=5000 * MBIT, window_bytes=WINDOW, connections=1
    )
    last = passage(shape, 50_000_000)[-1]
    assert 50_000_000 / last.end / MBIT == pytest.approx(paper_mbps, rel=0.021)
    assert last.due - last.end == pytest.approx(delay_ms / 1e3)


@pytest.mark.parametrize(("delay_ms", "connections"), [(10, 5), (20, 9), (30, 13), (40, 17)])
def test_auto_opens_as_many_connections_as_the_cap_needs(delay_ms, connections):
    shape = LinkShape(one_way_delay_s=delay_ms / 1e3, cap_bytes_per_s=5000 * MBIT, window_bytes=WINDOW)
    assert shape.connection_count == connections
    assert shape.bytes_per_s == pytest.approx(5000 * MBIT)


@pytest.mark.parametrize("connections", [1, 2, 3, 8, 16, 17, 30])
@pytest.mark.parametrize("gbps", [1, 5])
def test_a_message_occupies_an_idle_link_for_its_bytes_over_the_rate(connections, gbps):
    shape = LinkShape(
        one_way_delay_s=0.04, cap_bytes_per_s=gbps * 1000 * MBIT, window_bytes=WINDOW, connections=connections
    )
    slots = passage(shape, 5_000_000, ready=3.0)
    assert min(slot.start for slot in slots) == 3.0
    assert max(slot.end for slot in slots) - 3.0 == pytest.approx(5_000_000 / shape.bytes_per_s, rel=0.02)


@given(shape=shapes, sizes=st.lists(st.integers(1, LARGEST_CHUNK), min_size=2, max_size=60))
def test_no_interval_carries_more_than_the_cap(shape, sizes):
    shaper = PairShaper(shape, shape.connection_count)
    slots = [shaper.take(size, 0.0) for size in sizes]
    for first in range(len(sizes)):
        for last in range(first, len(sizes)):
            span = slots[last].end - slots[first].start
            assert sum(sizes[first : last + 1]) <= span * shape.cap_bytes_per_s * (1 + 1e-9)


@given(shape=shapes, sizes=st.lists(st.integers(1, LARGEST_CHUNK), min_size=2, max_size=60))
def test_a_connection_sends_at_most_a_window_and_a_chunk_within_a_round_trip(shape, sizes):
    shaper = PairShaper(shape, shape.connection_count)
    sent: dict[int, list[tuple[float, int]]] = {}
    for size in sizes:
        slot = shaper.take(size, 0.0)
        sent.setdefault(slot.connection, []).append((slot.end, size))
    for ends in sent.values():
        for end, _ in ends:
            within = sum(size for other, size in ends if end - 2 * shape.one_way_delay_s < other <= end)
            assert within <= shape.window_bytes * (1 + 1e-9) + max(size for _, size in ends)


@given(
    shape=shapes,
    sizes=st.lists(st.integers(1, LARGEST_CHUNK), min_size=1, max_size=40),
    lateness=st.floats(0, 1),
)
def test_a_chunk_that_comes_late_but_before_a_window_opens_loses_nothing(shape, sizes, lateness):
    early, late = (PairShaper(shape, shape.connection_count) for _ in range(2))
    for size in sizes:
        opens = late.next_start(0.0)
        assert late.take(size, opens * lateness) == early.take(size, 0.0)


def test_an_urgent_message_passes_at_once_and_pushes_back_what_waits():
    shape = LinkShape(one_way_delay_s=0.04, cap_bytes_per_s=1e6)
    shaper = PairShaper(shape, 1)
    assert shaper.take(500_000, 0.0).end == 0.5
    urgent = shaper.take_urgent(1000, 0.1)
    assert (urgent.start, urgent.end, urgent.due) == pytest.approx((0.1, 0.101, 0.141))
    assert shaper.take(500_000, 0.0).end == pytest.approx(1.001)


@given(total=st.integers(0, 10**9), connections=st.integers(1, 256))
def test_chunks_are_bounded_and_share_a_message_evenly(total, connections):
    chunk = chunk_bytes(total, connections)
    assert 0 < chunk <= LARGEST_CHUNK
    count = math.ceil(total / chunk)
    if chunk > 16 * 1024:  # not the lower bound: no round of the connections is left partly idle
        assert count % connections == 0 or total < connections * chunk * count / (count - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("one_way_delay_s", -1),
        ("one_way_delay_s", math.nan),
        ("cap_bytes_per_s", 0),
        ("window_bytes", math.inf),
        ("connections", 0),
        ("connections", 10**6),
    ],
)
def test_absurd_figures_are_refused_by_name(field, value):
    with pytest.raises(InputError) as refused:
        LinkShape(**{"one_way_delay_s": 0.01, field: value})
    assert refused.value.field == field
