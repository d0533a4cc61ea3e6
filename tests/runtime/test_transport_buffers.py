"""Memory of messages: used again as soon as nobody refers to it, and never before."""

import gc
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.transport import SharedReceiver, SharedSender
from engine.transport.buffers import GRAIN_BYTES, LEAST_KEPT_BYTES, Buffers, OnArrival
from tests.runtime.transport_pairs import cell, pair
from tests.waiting import LIMIT_S

MIB = 1 << 20


def place_of(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 5 * MIB), st.booleans()), max_size=40), st.randoms())
def test_no_two_in_use_share_a_byte(steps: list[int | bool], rng: random.Random) -> None:
    buffers = Buffers(most_idle_bytes=8 * MIB)
    in_use: list[tuple[memoryview, int]] = []
    for number, step in enumerate(steps):
        if not isinstance(step, bool):
            taken = buffers.take(step)
            assert len(taken) == step
            assert place_of(taken) % 64 == 0
            taken[0] = taken[-1] = number
            in_use.append((taken, number))
        elif in_use:
            in_use.pop(rng.randrange(len(in_use)))
        for buffer, written in in_use:
            assert buffer[0] == buffer[-1] == written


def test_what_nobody_refers_to_is_used_again() -> None:
    buffers = Buffers()
    first = buffers.take(3 * MIB)
    part, place = first[MIB:], place_of(first)
    del first
    other = buffers.take(3 * MIB)
    assert place_of(other) != place, "a part of it is still in use"
    del part
    assert place_of(buffers.take(3 * MIB - GRAIN_BYTES // 2)) == place


def test_little_is_kept_of_what_is_idle() -> None:
    buffers = Buffers(most_idle_bytes=4 * MIB)
    held = [buffers.take(2 * MIB) for _ in range(5)]
    held.clear()
    buffers.take(1)  # less than is kept
    assert len(buffers.take(LEAST_KEPT_BYTES)) == LEAST_KEPT_BYTES
    assert sum(map(len, buffers._idle)) <= 4 * MIB


@pytest.mark.parametrize("posted", [True, False])
def test_a_buffer_that_is_made_on_arrival(posted: bool) -> None:
    buffers = []

    def make() -> memoryview:
        buffers.append(memoryview(bytearray(600_000)))
        return buffers[-1]

    with pair() as (here, there):
        if posted:
            receive = there.post_receive(0, (1,), OnArrival(600_000, make))
        sent = here.send(1, (1,), b"x" * 600_000)
        if not posted:
            sent.wait(LIMIT_S)
            assert not buffers
            receive = there.post_receive(0, (1,), OnArrival(600_000, make))
        receive.wait(LIMIT_S)
        assert [receive.buffer] == buffers
        assert receive.buffer == b"x" * 600_000


def test_iterations_after_the_first_take_no_new_memory() -> None:
    """Nor is any held in a circle of references, which waits for a collection."""
    pipelines, size, order = 2, 4 * MIB, [(p, (m,)) for m in range(3) for p in range(2)]
    near, far = (0, 1), (2, 3)
    buffers, places = Buffers(), []

    def take(nbytes: int) -> memoryview:
        taken = buffers.take(nbytes)
        if nbytes >= LEAST_KEPT_BYTES:
            places.append(place_of(taken))
        return taken

    gc.disable()
    try:
        with cell(pipelines, None, None, new_buffer=take) as ranks:
            how = {"link": 0, "order": order}
            senders = [SharedSender(ranks[p], pipeline=p, near=near, far=far, **how) for p in near]
            receivers = [SharedReceiver(ranks[2 + p], pipeline=p, near=far, far=near, **how) for p in near]
            known = [_places_after(senders, receivers, order, size, number, places) for number in range(6)]
    finally:
        gc.enable()
    # However messages overlap, no more of them are there at once than come in an iteration, and one that is
    # received late. What was held would have a place of its own in each of the six.
    of_an_iteration = len(places) // len(known)
    assert known[-1] <= 2 * of_an_iteration < len(places)


def _places_after(senders, receivers, order, size, number, places) -> int:
    """How many places in memory messages had after one more iteration."""
    for end in senders + receivers:
        end.begin_iteration(number)
    receives = [receivers[p].post_receive(tag, size) for p, tag in order]
    for p, tag in order:
        senders[p].send(tag, bytes([number]) * size)
    for receive in receives:
        receive.wait(LIMIT_S)
        assert receive.buffer[:: size // 8] == bytes([number]) * 8
    return len(set(places))
