"""What goes wrong is said clearly, at `wait`, and nothing is left behind."""

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from engine.errors import InputError
from engine.transport import (
    AuthenticationError,
    ChecksumError,
    Endpoint,
    LinkLost,
    LinkShape,
    Peer,
    TransportError,
)
from tests.runtime.transport_pairs import endpoint, in_parallel, pair
from tests.waiting import LIMIT_S


@pytest.mark.parametrize(
    ("strange", "reason"),
    [
        ({"secret": b"other"}, "does not know the secret"),
        ({"run": "other"}, "another run"),
        ({"generation": 2}, "another generation"),
    ],
)
def test_a_stranger_is_refused(strange, reason):
    here, there = endpoint(0), endpoint(1, **strange)
    with contextlib.closing(here), contextlib.closing(there):
        outcome: list[TransportError] = []

        def wait_for_it():
            with pytest.raises(TransportError) as missing:
                here.connect([Peer(rank=1, address=there.address, link="east → west")], 4)
            outcome.append(missing.value)

        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        with pytest.raises(AuthenticationError, match=reason):
            there.connect([Peer(rank=0, address=here.address)], LIMIT_S)
        waiting.join()
        assert "rank 1 did not connect over east → west" in str(outcome[0])


def test_one_that_only_pretends_to_know_the_secret_is_refused():
    """A dialler that ignores the listener's proof and answers with rubbish gets no further."""
    here = endpoint(0)
    with contextlib.closing(here), socket.create_connection(here.address) as raw:
        from engine.control.handshake import Identity, dial

        dialogue = dial(Identity(rank=1, run="run", generation=0, secret=b"s3cret"), peer=0, index=0, count=2)
        raw.sendall(next(dialogue))
        raw.settimeout(LIMIT_S)
        assert len(raw.recv(89, socket.MSG_WAITALL)) == 89
        raw.sendall(bytes(56))
        assert raw.recv(1) != b"\0"
        assert raw.recv(1) == b""


def test_noise_and_silence_on_the_port_disturb_nobody():
    here, there = endpoint(0), endpoint(1)
    with contextlib.closing(here), contextlib.closing(there):
        noise = [socket.create_connection(here.address) for _ in range(20)]
        for one in noise[::2]:
            one.sendall(os.urandom(500))
        both = (here, there)
        in_parallel(2, lambda r: both[r].connect([Peer(rank=1 - r, address=both[1 - r].address)], LIMIT_S))
        receive = here.post_receive(1, (1,))
        there.send(0, (1,), b"hello").wait(LIMIT_S)
        receive.wait(LIMIT_S)
        for one in noise:
            one.close()


def test_nobody_there_is_said_with_the_address():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    lonely = endpoint(1)
    expected = rf"cannot reach rank 0 at 127\.0\.0\.1:{address[1]}"
    with contextlib.closing(lonely), pytest.raises(TransportError, match=expected):
        lonely.connect([Peer(rank=0, address=address)], 0.5)


def test_too_few_connections_on_the_other_side_are_an_error():
    both = (endpoint(0), endpoint(1))
    with (
        contextlib.closing(both[0]),
        contextlib.closing(both[1]),
        pytest.raises(LinkLost, match="4 are needed"),
    ):
        in_parallel(
            2,
            lambda r: both[r].connect(
                [Peer(rank=1 - r, address=both[1 - r].address, connections=4 - 2 * r)], LIMIT_S
            ),
        )


def test_a_changed_byte_is_detected():
    """Once or twice it is sent again; a network that changes bytes all the time is not to be trusted."""
    with _through_a_proxy(flip_after=50_000) as (here, there):
        receive = here.post_receive(1, (1,))
        there.send(0, (1,), bytes(400_000))
        with pytest.raises(ChecksumError, match=r"rank 0 lost rank 1 over east → west.*checksum"):
            receive.wait(LIMIT_S)
    with _through_a_proxy(flip_after=50_000, times=1) as (here, there):
        receive = here.post_receive(1, (1,))
        there.send(0, (1,), bytes(400_000))
        receive.wait(LIMIT_S)
        assert receive.buffer == bytes(400_000)


def test_connections_that_break_again_and_again_surface_on_both_sides():
    """Each is cut before a chunk is through, and so is the next."""
    with _through_a_proxy(cut_after=20_000) as (here, there):
        receive, other = here.post_receive(1, (1,)), there.post_receive(0, (2,))
        there.send(0, (1,), bytes(4_000_000))
        for handle in (receive, other):
            with pytest.raises(LinkLost, match="over east → west"):
                handle.wait(LIMIT_S)
        with pytest.raises(LinkLost):
            here.send(1, (3,), b"late").wait(LIMIT_S)
        with pytest.raises(LinkLost):
            here.post_receive(1, (3,)).wait(LIMIT_S)


def test_a_peer_that_is_killed_surfaces():
    here = endpoint(0)
    context = multiprocessing.get_context("spawn")
    published, addresses = context.Pipe()
    child = context.Process(target=_live_until_killed, args=(addresses, here.address), daemon=True)
    child.start()
    with contextlib.closing(here):
        assert published.poll(LIMIT_S)
        here.connect([Peer(rank=1, address=published.recv(), link="east → west")], LIMIT_S)
        receive, send = here.post_receive(1, (1,)), here.send(1, (2,), bytes(50_000_000))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(LinkLost, match="rank 0 lost rank 1 over east → west"):
            receive.wait(LIMIT_S)
        child.join(LIMIT_S)
        with contextlib.suppress(LinkLost):  # the kernel may have taken all of it in time
            send.wait(LIMIT_S)


def test_a_peer_that_falls_silent_surfaces():
    """Stopped, not dead: no socket tells."""
    here = endpoint(0, silence_timeout_s=5)
    context = multiprocessing.get_context("spawn")
    published, addresses = context.Pipe()
    child = context.Process(target=_live_until_killed, args=(addresses, here.address), daemon=True)
    child.start()
    assert child.pid is not None
    try:
        assert published.poll(LIMIT_S)
        here.connect([Peer(rank=1, address=published.recv())], LIMIT_S)
        receive = here.post_receive(1, (1,))
        os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(LinkLost, match="silent"):
            receive.wait(LIMIT_S)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.join(LIMIT_S)
        here.close()


def test_a_write_that_finds_its_connection_broken_sends_again_over_the_others():
    with pair(LinkShape(one_way_delay_s=0.01, cap_bytes_per_s=1e9, connections=2)) as (here, there):
        connections = here._links[1]._connections
        broken = threading.Event()
        here.call(lambda: (connections[0]._socket.shutdown(socket.SHUT_WR), broken.set()))
        assert broken.wait(LIMIT_S)
        receives = [there.post_receive(0, (n,)) for n in range(3)]
        for n in range(3):
            here.send(1, (n,), bytes([n]) * 2_000_000)
        for n, receive in enumerate(receives):
            receive.wait(LIMIT_S)
            assert receive.buffer == bytes([n]) * 2_000_000


def test_what_was_sent_before_a_clean_close_still_arrives():
    shape = LinkShape(one_way_delay_s=0.05, cap_bytes_per_s=20e6, connections=2)
    with pair(shape) as (here, there):
        receive, never = there.post_receive(0, (1,)), there.post_receive(0, (2,))
        here.send(1, (1,), b"x" * 2_000_000)
        here.close()
        receive.wait(LIMIT_S)
        assert bytes(receive.buffer) == b"x" * 2_000_000
        with pytest.raises(LinkLost, match="closed by the peer"):
            never.wait(LIMIT_S)
        with pytest.raises(TransportError, match="closed"):
            here.send(1, (3,), b"")


def test_closing_leaves_no_thread_and_no_descriptor():
    threads, descriptors = threading.active_count(), _descriptors()
    for _ in range(2):
        with pair(LinkShape(one_way_delay_s=0.01, cap_bytes_per_s=1e9, connections=5)) as (here, there):
            pending = there.post_receive(0, (1,))
            here.send(1, (2,), bytes(100_000)).wait(LIMIT_S)
            there.close()
            there.close()
            with pytest.raises(TransportError):
                pending.wait(LIMIT_S)
    endpoint(3).close()
    assert (threading.active_count(), _descriptors()) == (threads, descriptors)


def test_an_empty_secret_is_refused():
    with pytest.raises(InputError, match="secret"):
        Endpoint(rank=0, listen_host="127.0.0.1", secret="", run="run")


def _live_until_killed(addresses, address) -> None:
    mine = endpoint(1)
    addresses.send(mine.address)
    mine.connect([Peer(rank=0, address=address)], LIMIT_S)
    threading.Event().wait()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@contextlib.contextmanager
def _through_a_proxy(
    flip_after: int | None = None, cut_after: int | None = None, times: int = 10**6
) -> Iterator[tuple]:
    """Ranks 0 and 1; what 1 (who dials) sends passes a proxy that flips a bit, or cuts, after a while.

    The first `times` connections that carry so much are the ones that suffer.
    """
    left = [times]
    here, there = endpoint(0), endpoint(1)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        server.settimeout(0.1)
        pumps: list[threading.Thread] = []

        def serve() -> None:
            while not stop.is_set():
                try:
                    inner = stack.enter_context(server.accept()[0])
                except TimeoutError:
                    continue
                try:
                    outer = stack.enter_context(socket.create_connection(here.address))
                except OSError:  # it is closed: who dials it through us finds nobody, either
                    inner.close()
                    continue
                for ends in (
                    (inner, outer, flip_after, cut_after, left),
                    (outer, inner, None, None, left),
                ):
                    pumps.append(threading.Thread(target=_pump, args=ends))
                    pumps[-1].start()

        serving = threading.Thread(target=serve)
        serving.start()
        addresses = (there.address, server.getsockname())
        try:
            ranks = (here, there)
            in_parallel(
                2,
                lambda r: ranks[r].connect(
                    [Peer(rank=1 - r, address=addresses[r], link="east → west")], LIMIT_S
                ),
            )
            yield here, there
        finally:
            in_parallel(2, lambda r: (here, there)[r].close(2))
            stop.set()
            for thread in (serving, *pumps):
                thread.join(LIMIT_S)


def _pump(
    source: socket.socket, sink: socket.socket, flip_after: int | None, cut_after: int | None, left: list[int]
) -> None:
    passed = 0
    with contextlib.suppress(OSError):
        while data := bytearray(source.recv(65536)):
            if flip_after is not None and left[0] > 0 and passed <= flip_after < passed + len(data):
                left[0] -= 1
                data[flip_after - passed] ^= 1
            if cut_after is not None and passed > cut_after:
                break
            passed += len(data)
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
