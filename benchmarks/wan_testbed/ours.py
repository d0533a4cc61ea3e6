"""The transport between namespaces, one process per rank.

    python -m benchmarks.wan_testbed.ours RANK PIPELINES CONNECTIONS CAP_BYTES_PER_S BYTES REPEATS

Ranks 0 … n−1 are near and send, n … 2n−1 far. With one pipeline messages go over its own pair; with several,
those of pipeline 0 go over all pairs (temporal sharing). Rank 0 prints the seconds of each message, from
`send` until the peer has it, and the connections at the end.
"""

import sys
import time

from benchmarks.wan_testbed.tun import address
from engine.runtime.transport import Endpoint, Peer, SharedReceiver, SharedSender

_PORT = 9500


def listens_at(rank: int, pipelines: int) -> tuple[str, int]:
    """Where a rank listens."""
    return address(*divmod(rank, pipelines)), _PORT + rank


def main() -> None:
    rank, pipelines = int(sys.argv[1]), int(sys.argv[2])
    connections = "auto" if sys.argv[3] == "auto" else int(sys.argv[3])
    cap, nbytes, repeats = float(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6])
    host, port = listens_at(rank, pipelines)
    endpoint = Endpoint(
        rank=rank, listen_host=host, secret="testbed", run="testbed", listen_ports=(port, port)
    )
    near, far = tuple(range(pipelines)), tuple(range(pipelines, 2 * pipelines))
    mine, theirs = (near, far) if rank in near else (far, near)
    pipeline = rank % pipelines
    mates = [Peer(rank=mate, address=listens_at(mate, pipelines)) for mate in mine if mate != rank]
    other = theirs[pipeline]
    wan = Peer(
        rank=other,
        address=listens_at(other, pipelines),
        connections=connections,
        cap_bytes_per_s=cap,  # type: ignore[arg-type]
    )
    endpoint.connect([*mates, wan], timeout_s=60)
    order = [(0, (0,))]
    if rank in near:
        sender = SharedSender(endpoint, link=0, pipeline=pipeline, near=near, far=far, order=order)
    else:
        receiver = SharedReceiver(endpoint, link=0, pipeline=pipeline, near=far, far=near, order=order)
    buffer = bytearray(nbytes)
    for turn in range(repeats):
        if rank in near:
            sender.begin_iteration(turn)
            if pipeline == 0:
                endpoint.post_receive(other, (turn,)).wait(60)
                begin = time.monotonic()
                sender.send((0,), buffer).wait(120)
                endpoint.post_receive(other, (turn, 1)).wait(120)
                print(time.monotonic() - begin, flush=True)
        else:
            receiver.begin_iteration(turn)
            if pipeline == 0:
                receive = receiver.post_receive((0,), buffer)
                endpoint.send(other, (turn,), b"ready")
                receive.wait(120)
                endpoint.send(other, (turn, 1), b"all here")
    if rank == 0:
        print("connections", next(t.connections for t in endpoint.traffic() if t.peer == other), flush=True)
    for peer in (*(mate.rank for mate in mates), other):
        endpoint.send(peer, (-1,), b"")
    for peer in (*(mate.rank for mate in mates), other):
        endpoint.post_receive(peer, (-1,)).wait(120)
    endpoint.close()


if __name__ == "__main__":
    main()
