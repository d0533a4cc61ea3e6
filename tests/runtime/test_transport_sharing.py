"""Temporal sharing: exact bytes, the static order on every pair, n times the rate."""

import random
import time

import pytest

from engine.errors import InputError
from engine.transport import LinkLost, LinkShape, SharedReceiver, SharedSender
from engine.transport.sharing import _Leg
from tests.runtime.transport_pairs import cell
from tests.waiting import LIMIT_S

WAN = LinkShape(one_way_delay_s=0.02, cap_bytes_per_s=20e6)
LAN = LinkShape(one_way_delay_s=0, cap_bytes_per_s=12.5e9)


def shared_link(ranks, order, link=3, padded_to=0):
    n = len(ranks) // 2
    near, far = tuple(range(n)), tuple(range(n, 2 * n))
    how = {"link": link, "near": near, "far": far, "order": order, "padded_to": padded_to}
    senders = [SharedSender(ranks[p], pipeline=p, **how) for p in range(n)]
    receivers = [
        SharedReceiver(ranks[n + p], link=link, pipeline=p, near=far, far=near, order=order) for p in range(n)
    ]
    return senders, receivers


@pytest.mark.parametrize("pipelines", [1, 2, 3])
@pytest.mark.parametrize(
    ("wan", "lan", "padded_to"), [(WAN, LAN, 40_000), (WAN, None, 0), (None, None, 40_000)]
)
def test_every_message_arrives_whole_whatever_the_order_of_production(pipelines, wan, lan, padded_to):
    rng = random.Random(pipelines)
    order = [(p, (m, 0)) for m in range(3) for p in range(pipelines)]
    rng.shuffle(order)
    with cell(pipelines, wan, lan) as ranks:
        senders, receivers = shared_link(ranks, order, padded_to=padded_to)
        real = filled = 0
        for iteration in range(3):
            for end in rng.sample(senders + receivers, 2 * pipelines):
                end.begin_iteration(iteration)
            data = {key: rng.randbytes(rng.choice([0, 1, pipelines, 999, 30_001])) for key in order}
            keys = rng.sample(order, len(order))
            receives = {(p, tag): receivers[p].post_receive(tag, len(data[p, tag])) for p, tag in keys}
            real += sum(map(len, data.values()))
            filled += sum(max(len(message), padded_to) for message in data.values())
            sends = {(p, tag): senders[p].send(tag, data[p, tag]) for p, tag in rng.sample(order, len(order))}
            for key in order:
                receives[key].wait(LIMIT_S)
                sends[key].wait(LIMIT_S)
                assert bytes(receives[key].buffer) == data[key]
                assert sends[key].start <= sends[key].end
                assert wan is None or sends[key].end < receives[key].due <= receives[key].arrived
        by_wan = [
            (t.peer < pipelines) != (me < pipelines)
            for me in range(2 * pipelines)
            for t in ranks[me].traffic()
        ]
        sent = [t.bytes_sent for rank in ranks for t in rank.traffic()]
        over = {w: sum(n for n, far in zip(sent, by_wan, strict=True) if far == w) for w in (True, False)}
        reports = 16 * 3 * len(order) * (pipelines - 1)
        assert filled <= over[True] <= filled + len(order) * 3 * pipelines
        assert over[False] <= 2 * real + reports, "the LAN carries no filler"


@pytest.mark.parametrize("pipelines", [2, 3])
def test_messages_take_the_whole_hop_one_after_the_other(pipelines):
    """Each has n times the rate of one pair; a late message holds back those behind it."""
    size = 600_000
    order = [(p, (m,)) for m in range(2) for p in range(pipelines)]
    with cell(pipelines, WAN, LAN) as ranks:
        senders, receivers = shared_link(ranks, order)
        for end in senders + receivers:
            end.begin_iteration(0)
        receives = {(p, tag): receivers[p].post_receive(tag, size) for p, tag in order}
        late = order[1]
        sends = {(p, tag): senders[p].send(tag, bytes(size)) for p, tag in order if (p, tag) != late}
        time.sleep(0.1)
        before = time.monotonic()
        sends[late] = senders[late[0]].send(late[1], bytes(size))
        for key in order:
            receives[key].wait(LIMIT_S)
            sends[key].wait(LIMIT_S)
        alone = size / (pipelines * WAN.bytes_per_s)
        first = sends[order[0]]
        assert first.end - first.start == pytest.approx(alone, rel=0.02)
        assert receives[order[0]].due - first.end == pytest.approx(0.02, abs=0.001)
        assert sends[late].start >= before
        ends = [sends[key].end for key in order]
        assert ends == sorted(ends)
        assert ends[-1] - sends[late].start == pytest.approx((len(order) - 1) * alone, rel=0.05)
        for rank in range(pipelines):
            wan = next(t for t in ranks[rank].traffic() if t.peer == rank + pipelines)
            assert wan.bytes_sent == pytest.approx(size * len(order) / pipelines, abs=2 * len(order))


def test_each_pair_carries_the_parts_in_the_static_order(monkeypatch):
    pipelines = 3
    order = [(p, (m,)) for m in range(3) for p in (2, 0, 1)]
    forwarded: dict[int, list[tuple[int, ...]]] = {p: [] for p in range(pipelines)}
    send = SharedSender._send

    def watch(self, leg, peer, name, *args, **options):
        if leg is _Leg.WAN:
            forwarded[self._me].append(name)
        return send(self, leg, peer, name, *args, **options)

    monkeypatch.setattr(SharedSender, "_send", watch)
    with cell(pipelines, WAN, LAN) as ranks:
        senders, receivers = shared_link(ranks, order)
        for end in senders + receivers:
            end.begin_iteration(7)
        receives = [receivers[p].post_receive(tag, 900) for p, tag in order]
        for p, tag in reversed(order):
            senders[p].send(tag, bytes(900))
            time.sleep(0.005)
        for receive in receives:
            receive.wait(LIMIT_S)
    assert all(names == [(7, at) for at in range(len(order))] for names in forwarded.values())


def test_a_relay_that_dies_surfaces_at_the_waits_of_the_others():
    order = [(p, (m,)) for m in range(2) for p in range(2)]
    with cell(2, WAN, LAN) as ranks:
        senders, receivers = shared_link(ranks, order)
        for end in senders + receivers:
            end.begin_iteration(0)
        receive = receivers[0].post_receive((0,), 1000)
        ranks[1].close()
        sent = senders[0].send((0,), bytes(1000))
        with pytest.raises(LinkLost):
            sent.wait(LIMIT_S)
        with pytest.raises(LinkLost):
            senders[0].send((1,), bytes(1000)).wait(LIMIT_S)
        ranks[0].close()
        with pytest.raises(LinkLost):
            receive.wait(LIMIT_S)


def test_a_message_that_the_order_does_not_know_is_refused():
    with cell(2, None, None) as ranks:
        senders, receivers = shared_link(ranks, [(0, (0,)), (1, (0,))])
        for end in senders + receivers:
            end.begin_iteration(0)
        senders[0].send((0,), b"")
        for call in (lambda: senders[0].send((0,), b""), lambda: receivers[0].post_receive((1,), 5)):
            with pytest.raises(InputError, match="tag"):
                call()
        for bad in ({"pipeline": 1}, {"far": (2,)}, {"link": -1}, {"order": [(5, (0,))]}):
            figures = {"link": 1, "pipeline": 0, "near": (0, 1), "far": (2, 3), "order": [(0, (0,))]}
            with pytest.raises(InputError, match=next(iter(bad))):
                SharedSender(ranks[0], **{**figures, **bad})
