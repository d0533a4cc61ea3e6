"""The transport between ranks: messages that announce terabytes, and frames that are forged or come again."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import xxhash

from engine.control.handshake import Handshake, Identity, dial
from engine.control.thread_driver import greet
from engine.transport import Endpoint, Peer, TransportError
from engine.transport.wire import HEADER_BYTES, MOST_PAYLOAD_BYTES, Header, Kind, MalformedFrame, pack, unpack
from tests.runtime.transport_pairs import endpoint, pair
from tests.waiting import LIMIT_S, until

TERABYTES = 1 << 42


class Memory:
    """Gives memory, and knows how much was asked for at once."""

    def __init__(self) -> None:
        self.most = 0

    def __call__(self, nbytes: int) -> memoryview:
        self.most = max(self.most, nbytes)
        assert nbytes < TERABYTES
        return memoryview(bytearray(nbytes))


@contextmanager
def _member(memory: Memory, secret: bytes = b"s3cret") -> Iterator[tuple[Endpoint, socket.socket]]:
    """Rank 0, and a bare socket to it that has proved to be rank 1."""
    here = endpoint(0, new_buffer=memory)
    with closing(here), socket.create_connection(here.address) as raw:
        raw.settimeout(LIMIT_S)
        me = Identity(rank=1, run="run", generation=0, secret=secret)
        greet(raw, Handshake(dial(me, peer=0, index=0, count=1)))
        threading.Thread(
            target=_connect, args=(here, Peer(rank=1, address=("127.0.0.1", 9))), daemon=True
        ).start()
        until(lambda: 1 in here._links)
        yield here, raw


def _connect(here: Endpoint, peer: Peer) -> None:
    """Ends when the endpoint is closed: its other connections never come."""
    with suppress(TransportError):
        here.connect([peer], LIMIT_S)


def _closed(raw: socket.socket) -> bool:
    """Whether the other side closes, whatever it says before."""
    try:
        while raw.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def _chunk(total: int, body: bytes = b"x", **fields: Any) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(body)
    values = {"tag": (1,), "message": 1, "checksum": checksum, "payload_bytes": total, **fields}
    return pack(Header(kind=Kind.DATA, length=len(body), message_bytes=total, **values)) + body


@pytest.mark.parametrize("total", [MOST_PAYLOAD_BYTES + 1, TERABYTES, 2**63])
def test_a_header_that_announces_terabytes_is_refused_as_it_is_read(total: int) -> None:
    with pytest.raises(MalformedFrame, match="a message of"):
        unpack(memoryview(_chunk(total)[:HEADER_BYTES]))


@pytest.mark.parametrize("posted", [True, False])
def test_a_member_that_announces_terabytes_is_cut_off_before_memory_is_taken(posted: bool) -> None:
    memory = Memory()
    with _member(memory) as (here, raw):
        if posted:
            here.post_receive(1, (1,))
        raw.sendall(_chunk(TERABYTES))
        assert _closed(raw)
    assert memory.most < 1 << 20


def test_a_message_that_no_memory_is_left_for_ends_its_connection_alone() -> None:
    class Full(Memory):
        def __call__(self, nbytes: int) -> memoryview:
            raise MemoryError

    with _member(Full()) as (here, raw):
        raw.sendall(_chunk(1 << 30))
        assert _closed(raw)
        ran = threading.Event()
        here._loop.call(ran.set)
        assert ran.wait(LIMIT_S), "the endpoint's thread goes on"


def test_a_stranger_that_announces_terabytes_is_not_read() -> None:
    memory = Memory()
    with pair(new_buffer=memory) as (here, there), socket.create_connection(here.address) as raw:
        raw.settimeout(LIMIT_S)
        raw.sendall(_chunk(TERABYTES) * 20)
        assert _closed(raw)
        _still_works(here, there)
    assert memory.most < 1 << 20


def test_a_frame_that_comes_again_changes_nothing() -> None:
    """On its own connection: a message is known by its number."""
    memory = Memory()
    with _member(memory) as (here, raw):
        first = here.post_receive(1, (1,))
        raw.sendall(_chunk(1) * 3)
        first.wait(LIMIT_S)
        again = here.post_receive(1, (1,))
        raw.sendall(_chunk(1, message=2, body=b"y"))
        again.wait(LIMIT_S)
        assert bytes(again.buffer) == b"y", "the copies of the first message were dropped"


def test_a_whole_conversation_said_again_is_refused() -> None:
    """Its proof answers another challenge."""
    sent_bytes: list[bytes] = []
    here = endpoint(0)
    with closing(here):
        with socket.create_connection(here.address) as raw:
            me = Identity(rank=1, run="run", generation=0, secret=b"s3cret")
            handshake = Handshake(dial(me, peer=0, index=0, count=1))
            while True:
                sent_bytes.append(handshake.outgoing())
                raw.sendall(sent_bytes[-1])
                if handshake.greeting is not None:
                    break
                handshake.feed(raw.recv(handshake.wants))
        with socket.create_connection(here.address) as replay:
            replay.settimeout(LIMIT_S)
            replay.sendall(b"".join(sent_bytes) + _chunk(1))
            answer = b""
            try:
                while data := replay.recv(4096):
                    answer += data
            except ConnectionError:
                pass
        assert answer[-1:] != b"\0"
        assert len(here._early[1]) == 1, "the one that was no replay"


def _still_works(here: Endpoint, there: Endpoint) -> None:
    receive = here.post_receive(1, (7,))
    there.send(0, (7,), b"hello").wait(LIMIT_S)
    receive.wait(LIMIT_S)
    assert bytes(receive.buffer) == b"hello"
