"""Messages over real sockets: every byte, in any order, at the link's pace."""

import random
import socket
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.transport import LinkShape, MessageSizeError
from engine.transport.connection import _stays_here
from engine.transport.inbox import Inbox
from tests.runtime.transport_pairs import pair, sent_together
from tests.waiting import LIMIT_S, until

FAST = LinkShape(one_way_delay_s=0.001, cap_bytes_per_s=2e9, window_bytes=1e6, connections=3)
SLOW = LinkShape(one_way_delay_s=0.01, cap_bytes_per_s=10e6)


def payload(size: int, seed: int = 0) -> bytearray:
    return bytearray(random.Random(seed).randbytes(size))


@pytest.fixture(scope="module")
def links():
    """Pairs that the property tests use again and again, by (shaped, connections)."""
    kinds = {(None, 1): None, (None, 4): None, (FAST, 3): None}
    contexts = {kind: pair(kind[0], connections=kind[1]) for kind in kinds}
    yield {kind: context.__enter__() for kind, context in contexts.items()}
    for context in contexts.values():
        context.__exit__(None, None, None)


serial = iter(range(10**9))


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([(None, 1), (None, 4), (FAST, 3)]),
    sizes=st.lists(st.one_of(st.integers(0, 70_000), st.integers(0, 3_000_000)), min_size=1, max_size=5),
    extra=st.integers(0, 1_000_000),
    posted_late=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_every_byte_arrives_in_its_place(links, kind, sizes, extra, posted_late, order):
    here, there = links[kind]
    tags = [(next(serial), -1) for _ in sizes]
    messages = [payload(size, seed) for seed, size in enumerate(sizes)]
    buffers = [payload(size, 99) for size in sizes]
    numbers = list(range(len(sizes)))
    order.shuffle(numbers)

    def post():
        return {n: there.post_receive(0, tags[n], buffers[n]) for n in numbers}

    receives = {} if posted_late else post()
    padding = [None if n % 2 else sizes[n] + extra for n in range(len(sizes))]
    sends = [here.send(1, tags[n], messages[n], padded_to=padding[n]) for n in range(len(sizes))]
    for send in sends[: 1 if posted_late else 0]:
        send.wait(LIMIT_S)
    receives = receives or post()
    for n, receive in receives.items():
        receive.wait(LIMIT_S)
        sends[n].wait(LIMIT_S)
        assert buffers[n] == messages[n]
        assert receive.message_bytes == (padding[n] or sizes[n])
        assert sends[n].start <= sends[n].end
        assert kind[0] is None or sends[n].end < receive.due <= receive.arrived


def test_a_receive_without_a_buffer_brings_its_own_and_a_tag_can_be_used_again():
    with pair() as (here, there):
        for turn in range(3):
            receive = there.post_receive(0, (5,), into=None if turn else 40_000)
            here.send(1, (5,), payload(40_000, turn)).wait(LIMIT_S)
            receive.wait(LIMIT_S)
            assert receive.buffer == payload(40_000, turn)


def test_channels_and_directions_keep_equal_tags_apart():
    with pair() as (here, there):
        receives = [there.post_receive(0, (1,), channel=c) for c in (2, 1)] + [here.post_receive(1, (1,))]
        here.send(1, (1,), b"one", channel=1)
        here.send(1, (1,), b"two", channel=2)
        there.send(0, (1,), b"back")
        for receive in receives:
            receive.wait(LIMIT_S)
        assert [bytes(r.buffer) for r in receives] == [b"two", b"one", b"back"]


def test_a_message_of_another_size_fails_its_receive_alone():
    with pair() as (here, there):
        wrong, right = there.post_receive(0, (1,), 10), there.post_receive(0, (2,), 300_000)
        here.send(1, (1,), bytes(20))
        here.send(1, (2,), payload(300_000))
        with pytest.raises(MessageSizeError, match="20 bytes came for a buffer of 10"):
            wrong.wait(LIMIT_S)
        right.wait(LIMIT_S)
        assert right.buffer == payload(300_000)


def test_filler_crosses_the_wire_but_not_into_the_buffer():
    with pair(FAST) as (here, there):
        receive = there.post_receive(0, (1,), 3)
        here.send(1, (1,), b"abc", padded_to=5_000_000).wait(LIMIT_S)
        receive.wait(LIMIT_S)
        assert bytes(receive.buffer) == b"abc"
        assert here.traffic()[0].bytes_sent == there.traffic()[0].bytes_received == 5_000_000


@pytest.mark.parametrize("size", [3, 500_000])
def test_what_an_emulated_link_has_a_part_in_counts_as_there_when_it_says(size):
    with pair() as (here, there):
        ahead, before = there.post_receive(0, (1,), size), there.post_receive(0, (2,), size)
        soon, long_ago = time.monotonic() + 0.2, time.monotonic() - 5
        here.send(1, (1,), bytes(size), due=soon)
        here.send(1, (2,), bytes(size), due=long_ago)
        before.wait(LIMIT_S)
        assert before.due == pytest.approx(long_ago, abs=0.01)
        assert before.arrived > long_ago + 5, "it is there when it is there"
        ahead.wait(LIMIT_S)
        assert time.monotonic() >= soon - 0.01
        assert ahead.arrived >= ahead.due == pytest.approx(soon, abs=0.01)
    with pair(SLOW) as (here, there):
        receive, later = there.post_receive(0, (1,), size), time.monotonic() + 0.3
        here.send(1, (1,), bytes(size), due=later)
        receive.wait(LIMIT_S)
        assert receive.due >= later - 0.01, "held, though the link brings it sooner"


def test_the_measured_passage_is_the_link_s():
    """Times on the emulated clock are exact, whatever the machine does."""
    with pair(SLOW) as (here, there):
        receives = [there.post_receive(0, (n,)) for n in range(2)]
        with sent_together(here) as now:
            sends = [here.send(1, (n,), payload(500_000), not_before=now) for n in range(2)]
        for handle in (*receives, *sends):
            handle.wait(LIMIT_S)
        first, second = sends
        assert first.end - first.start == pytest.approx(0.05)
        assert second.start == pytest.approx(first.end)
        for send, receive in zip(sends, receives, strict=True):
            assert receive.due - send.end == pytest.approx(0.01)
            assert receive.arrived >= receive.due
        assert here.traffic()[0].busy_s == pytest.approx(0.1)


def test_a_slower_link_is_slower_by_its_figures_and_only_in_its_direction():
    slower = LinkShape(one_way_delay_s=0.01, cap_bytes_per_s=2e6)
    with pair(slower, back=SLOW) as (here, there):
        receives = [there.post_receive(0, (1,)), here.post_receive(1, (1,))]
        sends = [here.send(1, (1,), payload(200_000)), there.send(0, (1,), payload(200_000))]
        for handle in (*receives, *sends):
            handle.wait(LIMIT_S)
        slow, fast = (send.end - send.start for send in sends)
        assert slow / fast == pytest.approx(5)


def test_a_small_message_does_not_wait_behind_bulk_data():
    with pair(SLOW) as (here, there):
        bulk = [there.post_receive(0, (n,)) for n in range(4)]
        small = there.post_receive(0, (9,))
        with sent_together(here) as now:
            for n in range(4):
                here.send(1, (n,), payload(500_000), not_before=now)
            here.send(1, (9,), b"norm", not_before=now)
        small.wait(LIMIT_S)
        bulk[-1].wait(LIMIT_S)
        assert small.due < bulk[0].due


def test_a_message_leaves_no_earlier_than_told_and_does_not_hold_up_others():
    with pair(SLOW) as (here, there):
        receives = [there.post_receive(0, (n,)) for n in range(2)]
        with sent_together(here) as now:
            later = here.send(1, (0,), payload(50_000), not_before=now + 0.2)
            first = here.send(1, (1,), payload(50_000), not_before=now)
        for handle in (*receives, later, first):
            handle.wait(LIMIT_S)
        assert first.end <= later.start
        assert later.start >= now + 0.2


def test_unexpected_messages_are_bounded_and_flow_on_once_posted():
    with pair(unexpected_bytes=1_000_000) as (here, there):
        # The kernel's buffers hold some megabytes; what is beyond stays with the sender.
        sends = [here.send(1, (n,), payload(6_000_000, n)) for n in range(12)]
        with pytest.raises(TimeoutError):
            sends[-1].wait(0.3)
        for n in range(12):
            receive = there.post_receive(0, (n,))
            receive.wait(LIMIT_S)
            assert receive.buffer == payload(6_000_000, n)
        sends[-1].wait(LIMIT_S)


def test_a_receive_posted_before_its_message_came_is_known_before_the_message_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    post, place = Inbox.post, Inbox.place
    monkeypatch.setattr(Inbox, "post", lambda self, *args: (order.append("post"), post(self, *args))[1])
    monkeypatch.setattr(Inbox, "place", lambda self, *args: (order.append("place"), place(self, *args))[1])
    data = bytes(1 << 16)
    with pair() as (sender, receiver):
        before = sender.traffic()[0].egress_bytes
        with sent_together(receiver):  # it gets no turn while both happen
            receive = receiver.post_receive(0, (1,), len(data))
            sender.send(1, (1,), data)
            until(lambda: sender.traffic()[0].egress_bytes >= before + len(data), every_s=0.001)
        receive.wait(LIMIT_S)
    assert order[:2] == ["post", "place"]


def test_bad_arguments_are_refused_by_name():
    with pair() as (here, there):
        for field, call in {
            "peer": lambda: here.send(7, (1,), b""),
            "tag": lambda: here.send(1, (2**63,), b""),
            "padded_to": lambda: here.send(1, (1,), b"abc", padded_to=2),
            "into": lambda: there.post_receive(0, (1,), b"read only"),
        }.items():
            with pytest.raises(InputError) as refused:
                call()
            assert refused.value.field == field


@pytest.mark.skipif(sys.platform != "linux", reason="Linux names its congestion controls")
def test_within_a_machine_nothing_is_paced():
    with pair() as ends:
        controls = [
            connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
            for end in ends
            for link in end._links.values()
            for connection in link._connections.values()
        ]
    assert controls == [b"reno"] * 4


@pytest.mark.parametrize("peer", ["192.0.2.1", "198.51.100.7"])
def test_another_machine_keeps_the_congestion_control_of_the_system(peer):
    far = SimpleNamespace(getpeername=lambda: (peer, 1), family=socket.AF_INET)
    assert not _stays_here(far)
