"""The rendezvous store: values, numbers, keys that come later, and members that leave."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from engine.control.errors import PeerLost
from engine.control.handshake import Identity
from engine.control.rendezvous import StoreClient, StoreServer
from tests.waiting import LIMIT_S, until

ME = Identity(rank=0, run="run", generation=1, secret=b"s" * 32)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    serving = StoreServer(socket.create_server(("127.0.0.1", 0)), ME)
    yield serving
    serving.close()


def member(server: StoreServer, rank: int = 1, who: Identity = ME) -> StoreClient:
    return StoreClient(("127.0.0.1", server.port), replace(who, rank=rank), peer=0)


def waiting(server: StoreServer) -> int:
    return len(server._awaited)


def test_values_are_any_bytes_and_one_set_is_seen_by_all(server: StoreServer) -> None:
    one, other = member(server), member(server, 2)
    value = bytes(range(256)) * 5000
    one.set("a key", value)
    assert other.get(["a key"]) == [value]
    assert other.check(["a key"])
    assert not other.check(["a key", "another"])
    assert other.delete("a key")
    assert not other.delete("a key")
    assert not one.check(["a key"])


def test_sums_of_many_members_are_exact_and_read_as_text(server: StoreServer) -> None:
    def count(rank: int) -> None:
        store = member(server, rank)
        for _ in range(50):
            store.add("count", 1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(1, 5)))
    store = member(server)
    assert store.add("count", 0) == 200
    assert store.get(["count"]) == [b"200"]


def test_who_reads_a_key_waits_until_it_is_there(server: StoreServer) -> None:
    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(member(server, rank).get, ["a", "b"]) for rank in (1, 2, 3)]
        writer = member(server, 4)
        until(lambda: waiting(server) == 1)
        writer.set("a", b"1")
        until(lambda: waiting(server) == 1 and "b" in server._awaited)
        assert not any(reader.done() for reader in readers)
        writer.add("b", 2)
        assert [reader.result(LIMIT_S) for reader in readers] == [[b"1", b"2"]] * 3


def test_an_answer_that_does_not_come_in_time_ends_the_membership(server: StoreServer) -> None:
    store = member(server)
    with pytest.raises(PeerLost, match=r"no answer within 0.01 s \(never\)"):
        store.get(["never"], within_s=0.01)
    with pytest.raises(PeerLost, match="lost the rendezvous"):
        store.check(["never"])
    # Whoever waited there is noticed to be gone: no thread is left.
    until(lambda: not server._server._proven)


def test_a_store_that_ends_loses_its_members(server: StoreServer) -> None:
    store = member(server)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(store.get, ["never"])
        until(lambda: waiting(server) == 1)
        ending = threading.Thread(target=server.close)
        ending.start()
        with pytest.raises(PeerLost, match=r"lost the rendezvous at 127.0.0.1:\d+: it ended"):
            reader.result(LIMIT_S)
        ending.join(LIMIT_S)
        assert not ending.is_alive()


@pytest.mark.parametrize(
    "who", [replace(ME, secret=b"x" * 32), replace(ME, generation=2), replace(ME, run="other")]
)
def test_who_does_not_belong_to_the_run_is_refused(server: StoreServer, who: Identity) -> None:
    with pytest.raises(PeerLost, match="no rendezvous at"):
        member(server, 1, who)
    assert not server._values
