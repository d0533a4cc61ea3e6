"""Endpoints in one process, for the transport's tests."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from engine.transport import Endpoint, LinkShape, Peer
from tests.waiting import LIMIT_S


def endpoint(rank: int, **options: Any) -> Endpoint:
    return Endpoint(
        **{"rank": rank, "listen_host": "127.0.0.1", "secret": b"s3cret", "run": "run", **options}
    )


@contextmanager
def sent_together(end: Endpoint) -> Iterator[float]:
    """What is asked of an endpoint inside comes to its I/O thread at once; gives the time before."""
    held, gate = threading.Event(), threading.Event()
    end._loop.call(lambda: (held.set(), gate.wait(LIMIT_S)))
    assert held.wait(LIMIT_S)
    try:
        yield time.monotonic()
    finally:
        gate.set()


def in_parallel(count: int, work: Any) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


@contextmanager
def pair(
    shape: LinkShape | None = None, back: LinkShape | None = None, connections: int = 1, **options: Any
) -> Iterator[tuple[Endpoint, Endpoint]]:
    """Ranks 0 and 1; `shape` is that of 0 → 1, `back` (the same by default) that of 1 → 0."""
    both = (endpoint(0, **options), endpoint(1, **options))
    shapes = (shape, back or shape)
    try:
        in_parallel(2, lambda r: both[r].connect([_peer(both, 1 - r, shapes[r], connections)], LIMIT_S))
        yield both
    finally:
        in_parallel(2, lambda r: both[r].close())


@contextmanager
def cell(
    pipelines: int, wan: LinkShape | None, lan: LinkShape | None, **options: Any
) -> Iterator[list[Endpoint]]:
    """Ranks 0 … n−1 in one DC and n … 2n−1 in another; rank r and r + n share a WAN pair."""
    ranks = [endpoint(rank, **options) for rank in range(2 * pipelines)]

    def connect(rank: int) -> None:
        first = rank // pipelines * pipelines
        mates = [r for r in range(first, first + pipelines) if r != rank]
        peers = [_peer(ranks, mate, lan, 1) for mate in mates]
        ranks[rank].connect([*peers, _peer(ranks, (rank + pipelines) % len(ranks), wan, 1)], LIMIT_S)

    try:
        in_parallel(len(ranks), connect)
        yield ranks
    finally:
        in_parallel(len(ranks), lambda rank: ranks[rank].close())


def _peer(ranks: Sequence[Endpoint], rank: int, shape: LinkShape | None, connections: int) -> Peer:
    return Peer(
        rank=rank, address=ranks[rank].address, shape=shape, connections=connections, link="east → west"
    )
