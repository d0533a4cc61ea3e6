"""The WAN transport between processes: raw speed over loopback, and how true the emulated link is.

    python -m benchmarks.transport

Raw: messages of 64 MiB, chunks checksummed at both ends. Shaped: time from `send` to all bytes received, as
the receiver's wait() sees it, against bytes / rate + delay. Shared: 2 pipelines, one message on both pairs.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from engine.transport import Endpoint, LinkShape, Peer, SharedReceiver, SharedSender

RAW_BYTES = 64 << 20
REPEATS = 15
WINDOW_BYTES = 23.9e6 / 8  # Atlas Table 1
LAN = LinkShape(one_way_delay_s=0, cap_bytes_per_s=12.5e9)
SHAPED = [  # delay ms, cap Gbit/s, connections, bytes
    (40, 5, "auto", 5_000_000),
    (40, 5, 1, 5_000_000),
    (40, 5, 4, 5_000_000),
    (40, 1, "auto", 5_000_000),
    (10, 5, "auto", 5_000_000),
    (10, 1, "auto", 20_000_000),
    (40, 5, "auto", 1_000),
]


def main() -> None:
    print("raw loopback   connections   Gbit/s   GB/s")
    for connections in (1, 2, 4, 8):
        seconds = measure(2, None, connections, RAW_BYTES, repeats=8, peer=one_to_one)
        rate = RAW_BYTES / statistics.median(seconds)
        print(f"{'':14} {connections:11} {rate * 8 / 1e9:8.1f} {rate / 1e9:6.2f}")
    head = "delay ms  cap Gbit/s  connections      bytes  expected ms  median ms   worst ms  median off"
    print(f"\nemulated WAN   {head}")
    for delay_ms, gbps, connections, nbytes in SHAPED:
        shape = LinkShape(
            one_way_delay_s=delay_ms / 1e3,
            cap_bytes_per_s=gbps * 125e6,
            window_bytes=WINDOW_BYTES,
            connections=connections,  # type: ignore[arg-type]
        )
        expected = nbytes / shape.bytes_per_s + shape.one_way_delay_s
        seconds = measure(2, shape, 1, nbytes, repeats=REPEATS, peer=one_to_one)
        report("", f"{delay_ms:10} {gbps:11} {shape.connection_count:12}", nbytes, expected, seconds)
    shape = LinkShape(one_way_delay_s=0.04, cap_bytes_per_s=625e6, window_bytes=WINDOW_BYTES)
    seconds = measure(4, shape, 1, 5_000_000, repeats=REPEATS, peer=one_of_a_cell)
    expected = 2_500_000 / shape.bytes_per_s + shape.one_way_delay_s
    report("2 pairs shared", f"{40:6} {5:11} {17:12}", 5_000_000, expected, seconds)


def report(name: str, figures: str, nbytes: int, expected_s: float, seconds: list[float]) -> None:
    median = statistics.median(seconds)
    off = 100 * (median / expected_s - 1)
    times = f"{1e3 * expected_s:12.2f} {1e3 * median:10.2f} {1e3 * max(seconds):10.2f}"
    print(f"{name:14}{figures} {nbytes:10} {times} {off:+10.2f} %")


Rank = Callable[[Endpoint, dict[int, tuple[str, int]], LinkShape | None, int, int, int], list[float]]


def measure(
    ranks: int, shape: LinkShape | None, connections: int, nbytes: int, *, repeats: int, peer: Rank
) -> list[float]:
    """Seconds from send to received, of each repeat; one process per rank."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(ranks)]
    arguments = [(r, pipes[r][1], shape, connections, nbytes, repeats, peer) for r in range(ranks)]
    children = [context.Process(target=rank_process, args=a, daemon=True) for a in arguments]
    for child, (_, theirs) in zip(children, pipes, strict=True):
        child.start()
        theirs.close()  # so that a child that dies is an end of file here
    addresses = {rank: pipes[rank][0].recv() for rank in range(ranks)}
    for mine, _ in pipes:
        mine.send(addresses)
    with ThreadPoolExecutor(ranks) as pool:
        times = list(pool.map(lambda pipe: pipe[0].recv(), pipes))
    for child in children:
        child.join()
    started, received = times[0], times[ranks // 2]
    return [there - here for here, there in zip(started, received, strict=True)][1:]


def rank_process(
    rank: int,
    pipe: Connection,
    shape: LinkShape | None,
    connections: int,
    nbytes: int,
    repeats: int,
    peer: Rank,
) -> None:
    endpoint = Endpoint(rank=rank, listen_host="127.0.0.1", secret="benchmark", run="benchmark")
    pipe.send(endpoint.address)
    pipe.send(peer(endpoint, pipe.recv(), shape, connections, nbytes, repeats + 1))
    endpoint.close()


def one_to_one(
    endpoint: Endpoint,
    addresses: dict[int, tuple[str, int]],
    shape: LinkShape | None,
    connections: int,
    nbytes: int,
    repeats: int,
) -> list[float]:
    """Rank 0 sends to rank 1; returns the times of its sends (rank 0), of its arrivals (rank 1)."""
    other = 1 - endpoint.rank
    endpoint.connect([Peer(rank=other, address=addresses[other], shape=shape, connections=connections)])
    times = []
    buffer = bytearray(nbytes)
    for turn in range(repeats):
        if endpoint.rank == 0:
            endpoint.post_receive(other, (turn, 0)).wait()
            times.append(time.monotonic())
            endpoint.send(other, (turn, 1), buffer).wait()
        else:
            receive = endpoint.post_receive(other, (turn, 1), buffer)
            endpoint.send(other, (turn, 0), b"ready")
            receive.wait()
            times.append(time.monotonic())
    endpoint.send(other, (-1,), b"")
    endpoint.post_receive(other, (-1,)).wait()
    return times


def one_of_a_cell(
    endpoint: Endpoint,
    addresses: dict[int, tuple[str, int]],
    shape: LinkShape | None,
    connections: int,
    nbytes: int,
    repeats: int,
) -> list[float]:
    """Ranks 0 and 1 send one message of rank 0 over both pairs to rank 2, helped by rank 3."""
    del connections  # the shape says
    rank, pipeline = endpoint.rank, endpoint.rank % 2
    near, far = ((0, 1), (2, 3)) if rank < 2 else ((2, 3), (0, 1))
    mate, other = near[1 - pipeline], far[pipeline]
    endpoint.connect(
        [
            Peer(rank=mate, address=addresses[mate], shape=LAN),
            Peer(rank=other, address=addresses[other], shape=shape),
        ]
    )
    kind = SharedSender if rank < 2 else SharedReceiver
    end = kind(endpoint, link=0, pipeline=pipeline, near=near, far=far, order=[(0, (0,))])
    times = []
    for turn in range(repeats):
        end.begin_iteration(turn)
        if rank == 0:
            endpoint.post_receive(other, (turn,)).wait()
            times.append(time.monotonic())
            end.send((0,), bytearray(nbytes)).wait()
        elif rank == 2:
            receive = end.post_receive((0,), nbytes)
            endpoint.send(other, (turn,), b"ready")
            receive.wait()
            times.append(time.monotonic())
    for peer in (mate, other):
        endpoint.send(peer, (-1,), b"")
        endpoint.post_receive(peer, (-1,)).wait()
    return times


if __name__ == "__main__":
    main()
