"""10,000 requests over real connections, ended in every way there is, leave nothing behind."""

import os
import random
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from engine.control.handshake import Handshake, Identity, dial
from engine.control.thread_driver import greet
from engine.prefill.handover import KvTransferParams, StageCache, transfer_params
from engine.serve.kv_client import KvClient
from engine.serve.kv_pool import Freed, KvPool, KvShape, LeaseEnded
from engine.serve.kv_server import KvServer
from engine.serve.kv_wire import KvTransferError, send_frame
from tests.runtime.test_transport_tls import authority, node
from tests.waiting import LIMIT_S, until

SHAPE = KvShape(first_layer=0, layers=2, kv_heads=2, head_size=8, dtype="bf16", block_tokens=16)
REQUESTS, THREADS = 10_000, 4
ENDS = ["fetched", "fetched", "aborted", "expired", "died early", "died late"]


def identity(rank: int) -> Identity:
    return Identity(rank=rank, run="run", generation=1, secret=b"s" * 16)


def die(stage: StageCache, request: str, *, late: bool) -> None:
    """A decode worker that goes away before, or after, it has said what it wants."""
    with socket.create_connection((stage.host, stage.port), timeout=LIMIT_S) as connected:
        greet(connected, Handshake(dial(identity(99), peer=0)))
        if late:
            send_frame(connected, {"fetch": request, "blocks": list(stage.block_ids)})


def one(request: str, server: KvServer, client: KvClient, rng: random.Random, ended: list[str]) -> None:
    pool, tokens = server.pool, rng.randrange(1, 200)
    while pool.reserve(request, tokens, lease_s=LIMIT_S) is not None:
        time.sleep(0.001)  # until another's is freed
    end = rng.choice(ENDS)
    with pool.pinned(request) as cache:
        cache.filled = tokens
    stage = server.offer(request, lease_s=0.02 if end in ("expired", "died early") else LIMIT_S)
    if end == "fetched":
        came = client.fetch(transfer_params(engine_id="e", request=request, tokens=tokens, stages=[stage]))
        assert came.tokens == tokens
    elif end == "aborted":
        assert pool.free(request, Freed.ABORTED)
    elif end != "expired":
        die(stage, request, late=end == "died late")
    ended.append(end)


@pytest.mark.long
def test_ten_thousand_transfers_leave_nothing() -> None:
    pool = KvPool(SHAPE, budget_bytes=64 * SHAPE.block_bytes)
    ended: list[str] = []
    files = len(os.listdir("/proc/self/fd"))
    threads_before = threading.active_count()
    with KvServer(pool, identity(0), host="127.0.0.1") as server:

        def work(thread: int) -> None:
            rng, client = random.Random(thread), KvClient(identity(99), SHAPE)
            for number in range(REQUESTS // THREADS):
                one(f"{thread}/{number}", server, client, rng, ended)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: pool.bytes_in_use == 0)
        assert pool.free_bytes == pool.budget_bytes
    assert len(ended) == REQUESTS
    assert sum(pool.freed.values()) == REQUESTS
    assert pool.freed[Freed.HANDED_OVER] == ended.count("fetched")
    assert pool.freed[Freed.ABORTED] == ended.count("aborted")
    assert pool.freed[Freed.DECODER_LOST] == ended.count("died late")
    assert pool.freed[Freed.EXPIRED] == ended.count("expired") + ended.count("died early")
    assert threading.active_count() == threads_before
    assert len(os.listdir("/proc/self/fd")) == files
    for request in ("0/0", "3/2499"):
        with pytest.raises(LeaseEnded):
            pool.offer(request, lease_s=1)


def offered(server: KvServer, tokens: int = 5) -> KvTransferParams:
    """A cache of so many tokens."""
    server.pool.reserve("r", tokens, lease_s=LIMIT_S)
    with server.pool.pinned("r") as cache:
        cache.states.fill_(1.5)
        cache.filled = tokens
    stage = server.offer("r", lease_s=LIMIT_S)
    return transfer_params(engine_id="e", request="r", tokens=tokens, stages=[stage])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")
def test_with_certificates_none_but_nodes_come_in(tmp_path: Path) -> None:
    ours, theirs = authority(tmp_path / "ours"), authority(tmp_path / "theirs")
    mine, peer, stranger = node(ours, "a"), node(ours, "b"), node(theirs, "c")
    pool = KvPool(SHAPE, budget_bytes=64 * SHAPE.block_bytes)
    with KvServer(pool, identity(0), host="127.0.0.1", patience_s=LIMIT_S, tls=mine) as server:
        params = offered(server, 100)
        for tls in (stranger, None):
            with pytest.raises(KvTransferError):
                KvClient(identity(99), SHAPE, patience_s=LIMIT_S, tls=tls).fetch(params)
        assert pool.bytes_in_use > 0
        came = KvClient(identity(99), SHAPE, tls=peer).fetch(params)
        assert (came.parts[0] == 1.5).all()
        assert pool.bytes_in_use == 0


@pytest.mark.long
def test_a_full_house_is_no_end() -> None:
    """Strangers who connect and say nothing keep nobody out, and are let go."""
    pool = KvPool(SHAPE, budget_bytes=64 * SHAPE.block_bytes)
    with KvServer(pool, identity(0), host="127.0.0.1", patience_s=5) as server:
        crowd = [socket.create_connection((server.host, server.port), timeout=LIMIT_S) for _ in range(100)]
        assert KvClient(identity(99), SHAPE).fetch(offered(server)).tokens == 5
        assert all(connected.recv(1) == b"" for connected in crowd)
        for connected in crowd:
            connected.close()
