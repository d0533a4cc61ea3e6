"""The publisher over a real Valkey that is killed and started again while events flow."""

import json
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import redis

from tests.events import event
from tests.waiting import LIMIT_S, until
from webapp.servers import EmbeddedServers
from workers.agent import connect
from workers.publisher import Publisher
from workers.spool import Spool


@pytest.fixture
def valkey() -> Iterator[EmbeddedServers]:
    with tempfile.TemporaryDirectory(prefix="meridian-test-") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedServers(Path(folder), ("valkey",)) as servers:
            yield servers


def publisher(servers: EmbeddedServers, folder: Path, **more: int) -> Publisher:
    url = servers.servers[0].url
    spool = Spool(folder, 10**8)

    def patient() -> redis.Redis:
        """A broker that is there may be slow: what was not answered would be sent once more."""
        client = connect(url)
        client.connection_pool.connection_kwargs.update(
            socket_timeout=LIMIT_S, socket_connect_timeout=LIMIT_S
        )
        return client

    return Publisher(patient, stream="node:a:events", node="a", spool=spool, **more)


def stream(servers: EmbeddedServers) -> list[dict]:
    client = redis.Redis.from_url(servers.servers[0].url)
    return [json.loads(fields[b"e"]) for _, fields in client.xrange("node:a:events")]


def test_events_go_out_in_order_with_node_and_growing_ids(valkey: EmbeddedServers, tmp_path: Path) -> None:
    sender = publisher(valkey, tmp_path)
    sender.start()
    for n in range(1000):
        sender.put(event("step", iteration=n, loss=float("nan")))
    until(lambda: sender.waiting == 0 and len(stream(valkey)) == 1000)
    sender.stop(LIMIT_S)
    events = stream(valkey)
    assert [one["iteration"] for one in events] == list(range(1000))
    assert {(one["node"], one["loss"]) for one in events} == {("a", None)}
    ids = [one["id"] for one in events]
    assert ids == sorted(set(ids))


def test_none_is_lost_while_the_broker_is_killed_twice(valkey: EmbeddedServers, tmp_path: Path) -> None:
    sender = publisher(valkey, tmp_path)
    sender.start()
    done = threading.Event()
    sent = 0

    def flow() -> None:
        nonlocal sent
        while not done.is_set():
            sender.put(event("spans" if sent % 3 else "step", iteration=sent))
            sent += 1
            time.sleep(0.001)

    source = threading.Thread(target=flow)
    source.start()
    try:
        for _ in range(2):
            until(lambda: sender.waiting == 0 or sender.waiting < 50)
            child = valkey.servers[0].child
            assert child is not None
            child.send_signal(signal.SIGKILL)
            child.wait()
            until(lambda: sender.waiting > 300)
            valkey.restart("valkey")
            until(lambda: sender.waiting < 50)
    finally:
        done.set()
        source.join()
    until(lambda: sender.waiting == 0)
    sender.stop(LIMIT_S)
    numbers = [one["iteration"] for one in stream(valkey)]
    assert set(numbers) == set(range(sent))
    assert len(numbers) - sent <= 3 * 256  # repeated at most the batches in flight
    assert sender.lost == 0


def test_what_could_not_be_sent_before_the_end_is_sent_by_the_next_life(
    valkey: EmbeddedServers, tmp_path: Path
) -> None:
    child = valkey.servers[0].child
    assert child is not None
    child.kill()
    child.wait()
    first = publisher(valkey, tmp_path)
    first.start()
    for n in range(500):
        first.put(event("boundary", iteration=n))
    first.stop(LIMIT_S)
    assert not first._thread.is_alive(), "it ends while the broker is still away"
    assert first.waiting == 500
    valkey.restart("valkey")
    second = publisher(valkey, tmp_path)
    second.start()
    second.put(event("boundary", iteration=500))
    until(lambda: second.waiting == 0)
    second.stop(LIMIT_S)
    assert [one["iteration"] for one in stream(valkey)] == list(range(501))


def test_stop_waits_for_a_broker_that_hangs_as_long_as_it_is_told(tmp_path: Path) -> None:
    called, answers = threading.Event(), threading.Event()

    def hangs() -> redis.Redis:
        called.set()
        answers.wait(LIMIT_S)
        raise redis.ConnectionError("gone")

    spool = Spool(tmp_path, 10**8)
    sender = Publisher(hangs, stream="node:a:events", node="a", spool=spool)
    sender.start()
    sender.put(event("boundary", iteration=0))
    assert called.wait(LIMIT_S)
    sender.put(event("boundary", iteration=1))
    sender.stop(0.05)
    assert sender._thread.is_alive(), "it hangs still"
    assert len(spool) == 1, "what it did not have in its hands is on disk"
    answers.set()
    sender._thread.join(LIMIT_S)
    assert len(spool) == 2


def test_a_stream_that_nobody_reads_stops_growing(valkey: EmbeddedServers, tmp_path: Path) -> None:
    sender = publisher(valkey, tmp_path, stream_limit=1000)
    sender.start()
    for n in range(5000):
        sender.put(event("spans", iteration=n, spans=[]))
    until(lambda: len(stream(valkey)) > 1000)
    time.sleep(1.5)
    assert len(stream(valkey)) <= 1000 + 2 * 256
    read = set()
    client = redis.Redis.from_url(valkey.servers[0].url)

    def drained() -> bool:
        entries = client.xrange("node:a:events")
        read.update(json.loads(fields[b"e"])["iteration"] for _, fields in entries)
        if entries:
            client.xdel("node:a:events", *[number for number, _ in entries])
        return read == set(range(5000))

    until(drained)
    sender.stop(LIMIT_S)


def test_heartbeats_do_not_pile_up(valkey: EmbeddedServers, tmp_path: Path) -> None:
    child = valkey.servers[0].child
    assert child is not None
    child.kill()
    child.wait()
    sender = publisher(valkey, tmp_path)
    sender.start()
    for n in range(50):
        sender.put_latest(event("heartbeat", gpus=n))
        until(lambda: not sender._latest, every_s=0.001)
    valkey.restart("valkey")
    later = count(50)

    def arrives() -> bool:
        """Those before the publisher's next attempt are dropped, too."""
        sender.put_latest(event("heartbeat", gpus=next(later)))
        return bool(stream(valkey))

    until(arrives, every_s=0.1)
    sender.stop(LIMIT_S)
    # The one that was in its hands when the broker came back may go out.
    assert {one["gpus"] for one in stream(valkey)} <= {49, *range(50, next(later))}
