"""The publisher over a real Valkey that is killed and started again while events flow."""

import json
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.events import event
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
    return Publisher(lambda: connect(url), stream="node:a:events", node="a", spool=spool, **more)


def stream(servers: EmbeddedServers) -> list[dict]:
    client = redis.Redis.from_url(servers.servers[0].url)
    return [json.loads(fields[b"e"]) for _, fields in client.xrange("node:a:events")]


def until(met: Callable[[], bool], patience_s: float = 20) -> None:
    deadline = time.monotonic() + patience_s
    while not met():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_events_go_out_in_order_with_node_and_growing_ids(valkey: EmbeddedServers, tmp_path: Path) -> None:
    sender = publisher(valkey, tmp_path)
    sender.start()
    for n in range(1000):
        sender.put(event("step", iteration=n, loss=float("nan")))
    until(lambda: sender.waiting == 0 and len(stream(valkey)) == 1000)
    sender.stop()
    events = stream(valkey)
    assert [said["iteration"] for said in events] == list(range(1000))
    assert {(said["node"], said["loss"]) for said in events} == {("a", None)}
    ids = [said["id"] for said in events]
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
    sender.stop()
    numbers = [said["iteration"] for said in stream(valkey)]
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
    began = time.monotonic()
    first.stop()
    assert time.monotonic() - began < 3
    valkey.restart("valkey")
    second = publisher(valkey, tmp_path)
    second.start()
    second.put(event("boundary", iteration=500))
    until(lambda: second.waiting == 0)
    second.stop()
    assert [said["iteration"] for said in stream(valkey)] == list(range(501))


def test_a_stream_that_nobody_reads_stops_growing(valkey: EmbeddedServers, tmp_path: Path) -> None:
    sender = publisher(valkey, tmp_path, stream_limit=1000)
    sender.start()
    for n in range(5000):
        sender.put(event("spans", iteration=n, spans=[]))
    until(lambda: len(stream(valkey)) > 1000)
    time.sleep(1.5)
    assert len(stream(valkey)) <= 1000 + 2 * 256
    read = 0
    client = redis.Redis.from_url(valkey.servers[0].url)

    def drained() -> bool:
        nonlocal read
        entries = client.xrange("node:a:events")
        read += len(entries)
        if entries:
            client.xdel("node:a:events", *[number for number, _ in entries])
        return read == 5000

    until(drained)
    sender.stop()


def test_heartbeats_do_not_pile_up(valkey: EmbeddedServers, tmp_path: Path) -> None:
    child = valkey.servers[0].child
    assert child is not None
    child.kill()
    child.wait()
    sender = publisher(valkey, tmp_path)
    sender.start()
    for n in range(50):
        sender.put_heartbeat(event("heartbeat", gpus=n))
        time.sleep(0.005)
    valkey.restart("valkey")
    sender.put_heartbeat(event("heartbeat", gpus=50))
    time.sleep(0.5)
    sender.put_heartbeat(event("heartbeat", gpus=51))
    until(lambda: len(stream(valkey)) >= 1)
    sender.stop()
    assert {said["gpus"] for said in stream(valkey)} <= {50, 51}
