"""What connections, sharing and schedules bring over an emulated WAN that the kernel's own TCP sees.

    sudo python -m benchmarks.wan_testbed [messages | iterations] [--repeats N]

Rates are a tenth of Atlas's (a pair has 500 Mbit/s), delays are kept. First one plain connection at 10 to
40 ms against Table 1, by a program that knows nothing of our transport.

messages: one message of GPT-A (33.5 MB: a sequence of 4,096 tokens, hidden size 4,096, two bytes) at 40 ms:
plain TCP with one connection, with an equal share on each of 18, the transport with 18, with as many as it
chooses, and over two pairs that share in time. Seconds are until word is back that every byte is there.

iterations: see benchmarks/wan_testbed/iterations.py; about ten minutes.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

import psutil

from benchmarks.wan_testbed.iterations import LATENCY_MS, NODES, ROWS, Rates, measure, table
from benchmarks.wan_testbed.tun import Wan, address, wan

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["messages", "iterations"], help="by default both")
    parser.add_argument("--repeats", type=int, default=4, help="messages a row")
    options = parser.parse_args()
    if os.geteuid() or not os.path.exists("/dev/net/tun"):
        sys.exit("the testbed needs root and /dev/net/tun")
    buffer_bytes = calibrated()
    print(f"receive buffer {buffer_bytes} bytes, found at 40 ms")
    print("one plain connection   delay ms   Mbit/s   Table 1 / 10")
    found = {delay_ms: single_rate(delay_ms, buffer_bytes) for delay_ms in PAPER_MBPS}
    for delay_ms, rate in found.items():
        print(f"{'':22} {delay_ms:8} {8e-6 * rate:8.1f} {PAPER_MBPS[delay_ms] / SCALE:14.1f}", flush=True)
    if options.what != "iterations":
        messages(buffer_bytes, options.repeats)
    if options.what != "messages":
        iterations(buffer_bytes, found[int(LATENCY_MS)])


def messages(buffer_bytes: int, repeats: int) -> None:
    """The table of single messages."""
    with wan(delay_s=0.04, pair_bytes_per_s=PAIR_BYTES_PER_S, nodes=(PIPELINES, PIPELINES)) as made:
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
        for name, measure_step in steps.items():
            seconds = statistics.median(measure_step()[1:])  # the first finds TCP's windows closed
            first = first or seconds
            rate = 8e-6 * MESSAGE_BYTES / seconds
            print(f"{name:28} {seconds:9.2f} {rate:8.1f} {first / seconds:9.1f}", flush=True)


def iterations(buffer_bytes: int, connection_bytes_per_s: float) -> None:
    """The table of whole iterations."""
    rates = Rates(connection=connection_bytes_per_s, pair=PAIR_BYTES_PER_S)
    rows = []
    print(flush=True)
    for row in ROWS:
        # A network of its own for each: nothing of the row before is still on its way.
        with wan(delay_s=LATENCY_MS / 1e3, pair_bytes_per_s=PAIR_BYTES_PER_S, nodes=NODES) as made:
            made.limit_window(buffer_bytes)
            rows.append(measure(made, row, rates, psutil.Process(made.forwarder)))
        print(list(table(rows))[-1] if len(rows) > 1 else "\n".join(table(rows)), flush=True)


def calibrated() -> int:
    """The receive buffer with which one connection at 40 ms has the rate of Table 1."""
    buffer_bytes = FIRST_BUFFER_BYTES
    for _ in range(2):
        wanted = PAPER_MBPS[40] * 1e6 / 8 / SCALE
        buffer_bytes = round(buffer_bytes * wanted / single_rate(40, buffer_bytes))
    return buffer_bytes


def single_rate(delay_ms: int, buffer_bytes: int) -> float:
    """Bytes per second of one plain connection."""
    with wan(delay_s=delay_ms / 1e3, pair_bytes_per_s=PAIR_BYTES_PER_S, nodes=(1, 1)) as made:
        made.limit_window(buffer_bytes)
        return float(between(made, 1, ["rate", address(1, 0), str(PORT), "4"])[0])


def plain(made: Wan, connections: int, repeats: int) -> list[float]:
    sending = ["messages", address(1, 0), str(PORT), str(connections), str(MESSAGE_BYTES), str(repeats)]
    return [float(line) for line in between(made, connections, sending)]


def between(made: Wan, connections: int, sending: Sequence[str]) -> list[str]:
    """Run a plain sender near and a plain receiver far; what the sender prints."""
    flows = (*_PYTHON, "benchmarks.wan_testbed.flows")
    receiver = subprocess.Popen(
        made.run(1, *flows, "receive", address(1, 0), str(PORT), str(connections)),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        sender = made.run(0, *flows, *sending)
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
        ranks.append(
            subprocess.Popen(made.run(rank // pipelines, *command), stdout=subprocess.PIPE, text=True)
        )
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
