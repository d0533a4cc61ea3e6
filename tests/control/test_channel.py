"""The control channel without sockets, and how drivers take what they must not wait for."""

import logging
import selectors
import socket
from contextlib import suppress
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.control.asyncio_driver import AsyncChannel, call, serve
from engine.control.channel import LONGEST_LINE, MOST_UNPROVEN, MOST_UNREAD_BYTES, Channel, Unproven
from engine.control.errors import AuthenticationError, ChannelLost
from engine.control.handshake import Greeting, Handshake, Identity, dial, listen
from engine.control.messages import Beat, Messages, line_of
from engine.control.selector_driver import Listener, SelectorChannel
from engine.inputs import Document, Index
from tests.waiting import LIMIT_S, until


class Note(Document):
    kind: Literal["note"] = "note"
    number: Index
    text: str = ""


class Other(Document):
    kind: Literal["other"] = "other"


NOTES: Messages[Note | Other] = Messages(Note | Other)
HERE = Identity(rank=0, run="run", generation=1, secret=b"s")
THERE = Identity(rank=1, run="run", generation=1, secret=b"s")


def greeted(sizes: list[int]) -> tuple[Channel[Note | Other], Channel[Note | Other]]:
    """Two channels after their handshake, whose bytes came in pieces of such sizes, over and over."""
    both = Channel(Handshake(dial(THERE, peer=0)), NOTES), Channel(Handshake(listen(HERE)), NOTES)
    assert both[1].handshake.outgoing() == b"", "who listens says nothing first"
    turn = 0
    while any(channel.greeting is None for channel in both):
        for one, other in (both, both[::-1]):
            data = one.handshake.outgoing()
            while data:
                size = min(sizes[turn % len(sizes)], other.wants)
                turn += 1
                assert not list(other.receive(data[:size]))
                data = data[size:]
                if not data:
                    data = one.handshake.outgoing()
    return both


@given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=5), numbers=st.lists(st.integers(0, 9)))
def test_messages_come_as_they_were_sent_however_their_bytes_are_cut(
    sizes: list[int], numbers: list[int]
) -> None:
    dialler, listener = greeted(sizes)
    assert dialler.greeting is not None
    assert listener.greeting is not None
    assert (dialler.greeting.rank, listener.greeting.rank) == (0, 1)
    sent = b"".join(line_of(Note(number=number, text="line\nbreak")) + line_of(Beat()) for number in numbers)
    came: list[object] = []
    turn = 0
    while sent:
        size = sizes[turn % len(sizes)]
        turn += 1
        came += listener.receive(sent[:size])
        sent = sent[size:]
    assert came == [Note(number=number, text="line\nbreak") for number in numbers], "beats are not told"


def test_a_refusal_is_there_to_be_sent() -> None:
    stranger = Handshake(dial(Identity(rank=1, run="other", generation=1, secret=b"s"), peer=0))
    listener = Handshake(listen(HERE))
    listener.outgoing()
    with pytest.raises(AuthenticationError, match="another run"):
        listener.feed(stranger.outgoing())
    refusal = listener.outgoing()
    stranger.feed(refusal[: stranger.wants])
    with pytest.raises(AuthenticationError, match="another run"):
        stranger.feed(refusal[-stranger.wants :])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"kind":"note"}', "missing"),
        (b'{"kind":"note","number":"7"}', "int_type"),
        (b'{"kind":"note","number":1,"secret":2}', "extra_forbidden"),
        (b'{"kind":"gift"}', "union_tag_invalid"),
        (b"[1]", "invalid message"),
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_message_ends_the_channel_and_is_logged_but_not_quoted(
    line: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, listener = greeted([64])
    with caplog.at_level(logging.WARNING), pytest.raises(ChannelLost, match=why):
        list(listener.receive(line_of(Note(number=1))[:-1] + b"\n" + line + b"\n"))
    assert "rank 1" in caplog.text
    assert "gift" not in caplog.text


def test_messages_before_one_that_is_none_are_told() -> None:
    _, listener = greeted([64])
    came = listener.receive(line_of(Note(number=1)) + b"{\n")
    assert next(came) == Note(number=1)
    with pytest.raises(ChannelLost):
        next(came)


@pytest.mark.parametrize("ended", [False, True])
def test_a_line_is_only_so_long(ended: bool) -> None:
    _, listener = greeted([64])
    with pytest.raises(ChannelLost, match="a line of more than"):
        list(listener.receive(b" " * (LONGEST_LINE + 1) + (b"\n" if ended else b"")))


def test_the_oldest_of_too_many_strangers_is_closed() -> None:
    closed: list[int] = []
    unproven = Unproven()
    for number in range(MOST_UNPROVEN + 3):
        unproven.add(number, lambda number=number: closed.append(number))  # type: ignore[misc]
        if number == 1:
            unproven.remove(1)
    assert closed == [0, 2]


class Told:
    """What a handler is told."""

    def __init__(self) -> None:
        self.there: list[SelectorChannel[Note | Other]] = []
        self.gone: list[str] = []

    def greeted(self, connection: SelectorChannel[Note | Other]) -> None:
        self.there.append(connection)

    def handle(self, connection: SelectorChannel[Note | Other], message: Note | Other) -> None:
        raise ValueError("not now")

    def lost(self, connection: SelectorChannel[Note | Other], why: str) -> None:
        self.gone.append(why)


class Host:
    """A listener in its loop, and one member on a socket that does not block."""

    def __init__(self) -> None:
        self.told, self.selector = Told(), selectors.DefaultSelector()
        listening = socket.create_server(("127.0.0.1", 0))
        self.listener = Listener(listening, self.selector, HERE, NOTES, self.told, silent_s=1e9)
        self.member = socket.create_connection(listening.getsockname()[:2])
        self.member.setblocking(False)
        self.channel = Channel(Handshake(dial(THERE, peer=0)), NOTES)
        until(self._joined)

    def turn(self) -> None:
        for key, _ in self.selector.select(0):
            key.data()
        self.listener.tick()

    def close(self) -> None:
        self.listener.close()
        self.member.close()
        self.selector.close()

    def _joined(self) -> bool:
        self.turn()
        self.member.sendall(self.channel.handshake.outgoing())
        with suppress(BlockingIOError):
            list(self.channel.receive(self.member.recv(self.channel.wants)))
        return bool(self.told.there) and self.channel.greeting is not None


def test_a_peer_that_does_not_read_is_waited_for_by_nobody_and_given_up_in_the_end() -> None:
    host = Host()
    (connection,) = host.told.there
    message = Note(number=1, text="x" * (1 << 20))
    for _ in range(MOST_UNREAD_BYTES >> 20):  # what the kernel takes comes on top of what may lie unread
        connection.send(message)
        host.turn()
    assert connection.open
    assert not host.told.gone
    until(lambda: [connection.send(message), host.turn(), host.told.gone][-1])
    assert host.told.gone == ["it does not read"]
    host.close()


def test_what_a_peer_reads_late_comes_whole() -> None:
    host = Host()
    (connection,) = host.told.there
    sent = [Note(number=number, text="x" * 500_000) for number in range(20)]
    for message in sent:
        connection.send(message)
    came: list[object] = []

    def read() -> bool:
        host.turn()
        with suppress(BlockingIOError):
            came.extend(host.channel.receive(host.member.recv(host.channel.wants)))
        return len(came) == len(sent)

    until(read)
    assert came == sent
    host.close()


def test_a_message_that_makes_no_sense_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    host.member.sendall(line_of(Note(number=1)))
    until(lambda: [host.turn(), host.told.gone][-1])
    assert host.told.gone == ["not now"]
    assert "a message of rank 1 was refused: not now" in caplog.text
    host.close()


async def test_a_coordinator_closes_a_connection_whose_message_makes_no_sense_and_quotes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def attend(channel: AsyncChannel[Note | Other], _: Greeting) -> None:
        async for message in channel.messages():
            if isinstance(message, Note):
                raise ValueError(message.text)

    listening = socket.create_server(("127.0.0.1", 0))
    async with await serve(listening, HERE, NOTES, attend):
        channel = await call(*listening.getsockname()[:2], THERE, 0, NOTES, seconds=LIMIT_S)
        await channel.send(Other())
        await channel.send(Note(number=1, text="a prompt"))
        assert [message async for message in channel.messages()] == []
        await channel.close()
    assert "a message was refused: ValueError at attend" in caplog.text
    assert "a prompt" not in caplog.text
