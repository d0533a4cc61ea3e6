"""Connections that break and links that are cut: nothing is lost, nothing comes twice."""

import contextlib
import logging
import random
import socket
import struct
import threading

import pytest

from engine.control.handshake import Identity, dial
from engine.transport import Endpoint, LinkLost, LinkShape, Peer
from engine.transport.link import _MOST_BREAKS
from engine.transport.wire import Header, Kind, pack
from tests.runtime.transport_pairs import endpoint, in_parallel, pair
from tests.waiting import LIMIT_S, until

FAST = LinkShape(one_way_delay_s=0.001, cap_bytes_per_s=2e9, window_bytes=1e6, connections=3)


@pytest.mark.parametrize(("shape", "connections"), [(None, 1), (None, 4), (FAST, 3)])
def test_a_link_that_is_cut_again_and_again_loses_nothing_and_doubles_nothing(shape, connections):
    rng = random.Random(5)
    with pair(shape, connections=connections) as ends:
        for turn in range(8):
            cuts = 0
            messages = [rng.randbytes(rng.choice([0, 7, 30_000, 900_000, 3_000_000])) for _ in range(8)]
            receives, sends = [], []
            for n, message in enumerate(messages):
                sender, receiver = n % 2, 1 - n % 2
                # A buffer that is changed once it is full shows whether anything still writes into it.
                receives.append(ends[receiver].post_receive(sender, (turn, n), bytearray(len(message))))
                sends.append(ends[sender].send(receiver, (turn, n), message))
                # Between turns all arrives; with more cuts than this in between, a link would be given up.
                if rng.random() < 0.5 and cuts < _MOST_BREAKS - 1:
                    cuts += 1
                    side = rng.randrange(2)
                    ends[side].cut(1 - side)
            for receive, message in zip(receives, messages, strict=True):
                receive.wait(LIMIT_S)
                assert receive.buffer == message
                receive.buffer[:] = bytes(len(message))
            for send in sends:
                send.wait(LIMIT_S)
            assert not any(any(receive.buffer) for receive in receives)
        assert ends[0].traffic()[0].bytes_received == ends[1].traffic()[0].bytes_sent


def test_one_lost_connection_of_four_is_replaced_and_its_chunks_go_again(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "engine.transport")
    with pair(connections=4) as (here, there):
        message = random.Random(1).randbytes(40_000_000)
        receive = there.post_receive(0, (1,), bytearray(len(message)))
        link = here._links[1]
        send = here.send(1, (1,), message)
        here.call(lambda: link.ended(link._connections[2], "cut for the test"))
        receive.wait(LIMIT_S)
        send.wait(LIMIT_S)
        assert receive.buffer == message
        assert here.traffic()[0].reconnects == 1
        until(lambda: sorted(link._connections) == [-1, 0, 1, 2, 3])
        until(lambda: any("restored" in line for line in caplog.messages))
    broken = [line for line in caplog.messages if line.startswith("Link to rank 1")]
    assert broken[0] == "Link to rank 1 (east → west): cut for the test; reconnecting."
    assert len(broken) == 2


def test_a_peer_that_does_not_come_back_is_lost_with_the_reason():
    here, there = endpoint(0, silence_timeout_s=5), endpoint(1, silence_timeout_s=5)
    ends = (here, there)
    with contextlib.closing(here), contextlib.closing(there):
        in_parallel(2, lambda r: ends[r].connect([Peer(rank=1 - r, address=ends[1 - r].address)], LIMIT_S))
        receive = here.post_receive(1, (1,))
        there.call(lambda: setattr(there._links[0], "_dials", False))  # it cannot reach us any more
        here.cut(1)
        with pytest.raises(LinkLost, match=r"silent for .*connection -?\d was cut"):
            receive.wait(LIMIT_S)


def test_a_peer_that_was_started_again_is_not_taken_for_the_old_one():
    """The new endpoint knows the secret, but not what has already come."""
    here, there = endpoint(0), endpoint(1)
    ends = (here, there)
    with contextlib.closing(here), contextlib.closing(there):
        in_parallel(2, lambda r: ends[r].connect([Peer(rank=1 - r, address=ends[1 - r].address)], LIMIT_S))
        receive = here.post_receive(1, (1,))
        again = endpoint(1)
        with contextlib.closing(again):
            with contextlib.suppress(LinkLost):
                again.connect([Peer(rank=0, address=here.address)], LIMIT_S)
            with pytest.raises(LinkLost, match="started again"):
                receive.wait(LIMIT_S)


@pytest.mark.parametrize("rubbish", ["truncated", "corrupt header", "false acknowledgement", "huge control"])
def test_frames_that_no_sound_peer_sends_end_their_connection_with_the_reason(rubbish):
    frame = {
        "truncated": pack(Header(kind=Kind.BEAT))[:60],
        "corrupt header": bytes(144),
        "false acknowledgement": _false_acknowledgement,
        "huge control": pack(
            Header(kind=Kind.ACK, length=1 << 20, payload_bytes=1 << 20, message_bytes=1 << 20)
        ),
    }[rubbish]
    reason = {
        "truncated": "closed by the peer",
        "corrupt header": "checksum",
        "false acknowledgement": "acknowledged",
        "huge control": "ACK with 1048576 bytes",
    }[rubbish]
    here = endpoint(0)
    with contextlib.closing(here), contextlib.ExitStack() as stack:
        connecting = threading.Thread(
            target=lambda: here.connect([Peer(rank=1, address=here.address)], LIMIT_S)
        )
        connecting.start()
        sockets, numbers = zip(*(_greeted(stack, here, index, 2) for index in range(2)), strict=True)
        connecting.join()
        sockets[0].sendall(frame(numbers) if callable(frame) else frame)
        if rubbish == "truncated":
            sockets[0].shutdown(socket.SHUT_WR)
        until(lambda: reason in here._links[1].trouble)


def _false_acknowledgement(numbers) -> bytes:
    from engine.transport.wire import pack_acknowledgement

    return b"".join(pack_acknowledgement({numbers[1]: 7}))


def _greeted(stack, here: Endpoint, index: int, count: int) -> tuple[socket.socket, int]:
    """A raw connection that knows the secret."""
    raw = stack.enter_context(socket.create_connection(here.address))
    raw.settimeout(LIMIT_S)
    dialogue = dial(
        Identity(rank=1, run="run", generation=0, secret=b"s3cret", session=b"s" * 16),
        peer=0,
        index=index,
        count=count,
    )
    step = next(dialogue)
    try:
        while True:
            if isinstance(step, bytes):
                raw.sendall(step)
                step = next(dialogue)
            else:
                step = dialogue.send(raw.recv(step, socket.MSG_WAITALL))
    except StopIteration as finished:
        return raw, finished.value.connection


def test_a_peer_of_another_version_is_refused_with_the_reason():
    here = endpoint(0)
    with contextlib.closing(here), socket.create_connection(here.address) as raw:
        dialogue = dial(Identity(rank=1, run="run", generation=0, secret=b"s3cret"), peer=0, index=0, count=2)
        hello = bytearray(next(dialogue))
        struct.pack_into("<H", hello, 8, 1)
        raw.sendall(hello)
        raw.settimeout(LIMIT_S)
        answer = raw.recv(89, socket.MSG_WAITALL)
        assert answer[0] == 1
        until(lambda: "another version" in here._greeter.refused)


def test_the_reason_of_a_refusal_can_be_read_by_the_refused():
    """What a listener of another version would answer to us."""
    me = Identity(rank=1, run="run", generation=0, secret=b"s3cret")
    dialogue = dial(me, peer=0, index=0, count=2)
    hello = next(dialogue)
    assert isinstance(hello, bytes)
    assert next(dialogue) == 57
    challenge = struct.pack("<B32sd16s", 1, bytes(32), 0.0, bytes(16))
    assert dialogue.send(challenge) == 32
    with pytest.raises(ConnectionError, match="another version"):
        dialogue.send(me.mac(b"listener", hello, challenge))


def test_everything_that_leaves_is_counted_as_egress():
    with pair(connections=2) as (here, there):
        receive = there.post_receive(0, (1,), 1_000_000)
        here.send(1, (1,), bytes(1_000_000), padded_to=2_000_000).wait(LIMIT_S)
        receive.wait(LIMIT_S)
        traffic = here.traffic()[0]
        assert traffic.bytes_sent == 2_000_000
        assert 2_000_000 < traffic.egress_bytes < 2_020_000
        assert traffic.resent_bytes == 0
        here.cut(1)
        until(lambda: here.traffic()[0].egress_bytes > traffic.egress_bytes)  # what went before still counts


def test_a_paced_link_is_given_no_more_than_its_cap():
    ends = (endpoint(0), endpoint(1))
    with contextlib.closing(ends[0]), contextlib.closing(ends[1]):
        in_parallel(
            2,
            lambda r: ends[r].connect(
                [Peer(rank=1 - r, address=ends[1 - r].address, connections=2, cap_bytes_per_s=40e6)], LIMIT_S
            ),
        )
        receive = ends[1].post_receive(0, (1,), 8_000_000)
        send = ends[0].send(1, (1,), bytes(8_000_000))
        receive.wait(LIMIT_S)
        send.wait(LIMIT_S)
        # Its last chunk may be given out at once, and 50 ms in which nothing was sent be made up for.
        assert send.end - send.start > (8_000_000 - 400_000) / 40e6 - 0.05
