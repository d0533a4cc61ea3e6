"""What one plain TCP connection carries over the emulated WAN, measured without our transport."""

import subprocess
import sys

from benchmarks.wan_testbed.case import PAIR_BYTES_PER_S, PAPER_MBPS, SCALE
from benchmarks.wan_testbed.tun import Wan, address_of, wan

_WINDOW_BYTES = 23.9e6 / 8 / SCALE
# The share of the buffer that becomes window differs by kernel: it is found by trials.
_FIRST_BUFFER_BYTES = round(_WINDOW_BYTES / 0.6)
_TRIALS = 2
_SECONDS = 4.0
_LAN_SECONDS = 1.0
_PORT = 9400
_FLOWS = (sys.executable, "-m", "benchmarks.wan_testbed.flows")


def calibrated() -> int:
    """The receive buffer, in bytes, with which one connection at 40 ms has the rate of Table 1."""
    buffer_bytes = _FIRST_BUFFER_BYTES
    for _ in range(_TRIALS):
        wanted = PAPER_MBPS[40] * 1e6 / 8 / SCALE
        buffer_bytes = round(buffer_bytes * wanted / single_rate(40, buffer_bytes))
    return buffer_bytes


def single_rate(delay_ms: int, buffer_bytes: int) -> float:
    """Bytes per second of one plain connection."""
    with wan(delay_s=delay_ms / 1e3, pair_bytes_per_s=PAIR_BYTES_PER_S, nodes=(1, 1)) as testbed:
        testbed.limit_window(buffer_bytes)
        return _between(testbed, 1, _SECONDS)


def lan_rate(buffer_bytes: int) -> float:
    """Bytes per second of one plain connection between nodes of a data centre, which share a kernel."""
    with wan(delay_s=0.0, pair_bytes_per_s=PAIR_BYTES_PER_S, nodes=(1, 1)) as testbed:
        testbed.limit_window(buffer_bytes)
        return _between(testbed, 0, _LAN_SECONDS)


def _between(testbed: Wan, dc: int, seconds: float) -> float:
    """Run a plain sender in the first data centre and a plain receiver in `dc`; bytes per second."""
    there = (address_of(dc, 0), str(_PORT))
    receiver = subprocess.Popen(
        testbed.run(dc, *_FLOWS, "receive", *there), stdout=subprocess.PIPE, text=True
    )
    try:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        return float(
            subprocess.run(
                testbed.run(0, *_FLOWS, "rate", *there, str(seconds)),
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                timeout=300,
            ).stdout
        )
    finally:
        receiver.kill()
        receiver.wait()
