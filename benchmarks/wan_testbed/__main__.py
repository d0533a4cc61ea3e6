"""What connections, chunks and sharing bring over an emulated WAN that the kernel's own TCP sees.

    sudo python -m benchmarks.wan_testbed [messages]

Rates are a tenth of Atlas's (a pair has 500 Mbit/s), delays are kept. First one plain connection at 10 to
40 ms against Table 1; then one message of GPT-A (33.5 MB: a sequence of 4,096 tokens, hidden size 4,096, two
bytes) at 40 ms: plain TCP with one connection, with an equal share on each of 18, the transport with 18, with
as many as it chooses, and over two pairs that share in time. Seconds are until word is back that every byte
is there.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.wan_testbed.ours import address
from benchmarks.wan_testbed.tun import Wan, wan

SCALE = 10
PAPER_MBPS = {10: 1220, 20: 600, 30: 396, 40: 293}
PAIR_BYTES_PER_S = 5e9 / 8 / SCALE
WINDOW_BYTES = 23.9e6 / 8 / SCALE
MESSAGE_BYTES = 4096 * 4096 * 2
PIPELINES = 2
# The share of the buffer that becomes window differs by kernel: it is found by one trial.
FIRST_BUFFER_BYTES = round(WINDOW_BYTES / 0.6)
PORT = 9400
_PYTHON = (sys.executable, "-m")


def main() -> None:
    if os.geteuid() or not os.path.exists("/dev/net/tun"):
        sys.exit("the testbed needs root and /dev/net/tun")
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    buffer_bytes = calibrated()
    print(f"receive buffer {buffer_bytes} bytes, found at 40 ms")
    print("one plain connection   delay ms   Mbit/s   Table 1 / 10")
    for delay_ms, paper in PAPER_MBPS.items():
        print(f"{'':22} {delay_ms:8} {8e-6 * single_rate(delay_ms, buffer_bytes):8.1f} {paper / SCALE:14.1f}")
    with wan(delay_s=0.04, pair_bytes_per_s=PAIR_BYTES_PER_S, nodes=PIPELINES) as made:
        made.limit_window(buffer_bytes)
        steps = {
            "plain, 1 connection": lambda: plain(made, 1, repeats),
            "plain, equal share of 18": lambda: plain(made, 18, repeats),
            "ours, 18 connections": lambda: ours(made, 1, "18", repeats),
            "ours, auto": lambda: ours(made, 1, "auto", repeats + 2),
            "ours, auto, 2 pairs shared": lambda: ours(made, PIPELINES, "auto", repeats + 2),
        }
        print(f"\n{MESSAGE_BYTES / 1e6:.1f} MB at 40 ms            seconds   Mbit/s   times the first")
        first = None
        for name, measure in steps.items():
            seconds = statistics.median(measure()[1:])  # the first finds TCP's windows closed
            first = first or seconds
            rate = 8e-6 * MESSAGE_BYTES / seconds
            print(f"{name:28} {seconds:9.2f} {rate:8.1f} {first / seconds:9.1f}", flush=True)


def calibrated() -> int:
    """The receive buffer with which one connection at 40 ms has the rate of Table 1."""
    buffer_bytes = FIRST_BUFFER_BYTES
    for _ in range(2):
        wanted = PAPER_MBPS[40] * 1e6 / 8 / SCALE
        buffer_bytes = round(buffer_bytes * wanted / single_rate(40, buffer_bytes))
    return buffer_bytes


def single_rate(delay_ms: int, buffer_bytes: int) -> float:
    """Bytes per second of one plain connection."""
    with wan(delay_s=delay_ms / 1e3, pair_bytes_per_s=PAIR_BYTES_PER_S, nodes=1) as made:
        made.limit_window(buffer_bytes)
        return float(between(made, 1, ["rate", "10.77.2.1", str(PORT), "4"])[0])


def plain(made: Wan, connections: int, repeats: int) -> list[float]:
    sending = ["messages", "10.77.2.1", str(PORT), str(connections), str(MESSAGE_BYTES), str(repeats)]
    return [float(line) for line in between(made, connections, sending)]


def between(made: Wan, connections: int, sending: Sequence[str]) -> list[str]:
    """Run a plain sender near and a plain receiver far; what the sender prints."""
    flows = (*_PYTHON, "benchmarks.wan_testbed.flows")
    receiver = subprocess.Popen(
        made.run("far", *flows, "receive", "10.77.2.1", str(PORT), str(connections)),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        sender = made.run("near", *flows, *sending)
        return subprocess.run(
            sender, check=True, stdout=subprocess.PIPE, text=True, timeout=300
        ).stdout.split()
    finally:
        receiver.kill()
        receiver.wait()


def ours(made: Wan, pipelines: int, connections: str, repeats: int) -> list[float]:
    ranks = []
    for rank in range(2 * pipelines):
        figures = (pipelines, connections, PAIR_BYTES_PER_S, MESSAGE_BYTES, repeats)
        command = (*_PYTHON, "benchmarks.wan_testbed.ours", str(rank), *map(str, figures))
        side = "near" if address(rank, pipelines)[0].startswith("10.77.1.") else "far"
        ranks.append(subprocess.Popen(made.run(side, *command), stdout=subprocess.PIPE, text=True))
    try:
        out, _ = ranks[0].communicate(timeout=300)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                try:
                    rank.wait(20)
                except subprocess.TimeoutExpired:
                    rank.kill()
    lines = out.split("\n")
    return [float(line) for line in lines if line and not line.startswith("connections")]


if __name__ == "__main__":
    main()
