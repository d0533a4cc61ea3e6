"""Training over an emulated WAN that the kernel's own TCP sees: ours beside torch.distributed.pipelining.

    sudo python -m benchmarks.wan_testbed            # about 15 minutes on two cores
    sudo python -m benchmarks.wan_testbed --quick    # messages and ops an eighth as long, over the same WAN

Rates are a tenth of Atlas's and op times ten times as long, 40 ms are kept (see `case`). First one plain
connection at 10 to 40 ms against Table 1. Then a row per step: seconds of an iteration (median of those after
the warm-up), the simulator's for the same set-up (of torch one that waits as it does, see `waiting`), and how
many times faster than torch each is in either.
"""

import argparse
import os
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.wan_testbed.calibration import calibrated, lan_rate, single_rate
from benchmarks.wan_testbed.case import (
    CONNECTIONS,
    DELAY_S,
    NODES,
    PAIR_BYTES_PER_S,
    PAPER_MBPS,
    SCALE,
    Case,
    Sharing,
    ranks,
)
from benchmarks.wan_testbed.executing import OurRank, Run
from benchmarks.wan_testbed.pipelining import TorchRank
from benchmarks.wan_testbed.ranks import Iteration, Rank, measured
from benchmarks.wan_testbed.tun import wan
from benchmarks.wan_testbed.waiting import waiting_s
from engine.job.launch import RankAssignment
from engine.schedule import Built, build
from engine.schedule.scenario import Scenario
from engine.simulate import time_schedule

QUICK_PART = 8
# Of the forwarder and of the ranks, cores that they kept busy; of the packets, their mean size.
_HEAD = (
    "seconds",
    "least–most",
    "simulated",
    "off",
    "× torch",
    "simulated",
    "off",
    "forwarder",
    "ranks",
    "KB/packet",
    "dropped",
    "load",
)
_WIDTHS = (9, 14, 11, 9, 9, 11, 8, 11, 7, 11, 9, 7)
Build = Callable[[RankAssignment], Rank]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A row of the table: how a rank is built, and what the simulator says of it."""

    name: str
    build: Build
    simulated_s: float
    warm_up: int
    iterations: int


def main() -> None:
    """Read what to run, and run it."""
    parser = argparse.ArgumentParser(prog="benchmarks.wan_testbed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="messages and ops an eighth as long")
    names = [name for name, *_ in _OURS]
    parser.add_argument("--only", nargs="+", choices=["torch", *names], default=["torch", *names])
    arguments = parser.parse_args()
    if os.geteuid() or not os.path.exists("/dev/net/tun"):
        sys.exit("the testbed needs root and /dev/net/tun")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        compare(Case(part=QUICK_PART if arguments.quick else 1), arguments.only)
    except KeyboardInterrupt:
        sys.exit("interrupted")


def compare(case: Case, only: Sequence[str]) -> None:
    """Calibrate, measure each step, and print them as they come."""
    buffer_bytes, rates, lan = calibration()
    with wan(delay_s=DELAY_S, pair_bytes_per_s=PAIR_BYTES_PER_S, nodes=NODES) as testbed:
        testbed.limit_window(buffer_bytes)
        print(
            f"\n{case.message_bytes / 1e6:.1f} MB a message, load {_load()}; CPU in cores of {os.cpu_count()}"
        )
        print(_line("", _HEAD), flush=True)
        baseline: tuple[float, float] | None = None
        for step in steps(case, rates[40], lan, only):
            done = list(measured(testbed, ranks(), step.build, step.warm_up + step.iterations))[
                step.warm_up :
            ]
            seconds = statistics.median(one.seconds for one in done)
            baseline = baseline or (seconds, step.simulated_s)
            print(_row(step, done, seconds, baseline), flush=True)


def calibration() -> tuple[int, dict[int, float], float]:
    """The receive buffer that gives Table 1's rate at 40 ms, bytes/s by delay in ms, and those of the LAN."""
    buffer_bytes = calibrated()
    print(f"load {_load()}; receive buffer {buffer_bytes} bytes, found at 40 ms")
    print("one plain connection   delay ms   Mbit/s   Table 1 / 10")
    rates = {}
    for delay_ms, paper in PAPER_MBPS.items():
        rates[delay_ms] = single_rate(delay_ms, buffer_bytes)
        print(f"{'':22} {delay_ms:8} {8e-6 * rates[delay_ms]:8.1f} {paper / SCALE:14.1f}", flush=True)
    lan = lan_rate(buffer_bytes)
    print(f"{'':22} {'LAN':>8} {8e-6 * lan:8.1f}", flush=True)
    return buffer_bytes, rates, lan


_OURS: tuple[tuple[str, str, str, Sharing, int, bool], ...] = (
    ("single", "ours, 1F1B, one connection", "1f1b", "spatial", 1, False),
    ("equal", f"ours, 1F1B, equal split of {CONNECTIONS}", "1f1b", "spatial", CONNECTIONS, True),
    ("stealing", f"ours, 1F1B, work stealing on {CONNECTIONS}", "1f1b", "spatial", CONNECTIONS, False),
    ("sharing", "… and temporal sharing", "1f1b", "temporal", CONNECTIONS, False),
    ("atlas", "… and the schedule atlas", "atlas", "temporal", CONNECTIONS, False),
    ("auto", "… and the schedule auto", "auto", "temporal", CONNECTIONS, False),
)


def steps(case: Case, single_bytes_per_s: float, lan_bytes_per_s: float, only: Sequence[str]) -> list[Step]:
    """The rows that were asked for."""
    placed = ranks()
    rows = []
    if "torch" in only:
        rows.append(
            Step(
                name="torch 1F1B, gloo, one connection",
                build=partial(TorchRank, case, placed),
                simulated_s=waiting_s(case, single_bytes_per_s, lan_bytes_per_s),
                warm_up=1,
                iterations=1,
            )
        )
    for key, name, policy, sharing, connections, equal in _OURS:
        if key in only:
            rate = min(connections * single_bytes_per_s, PAIR_BYTES_PER_S)
            built, simulated_s = _built(case.scenario(policy, sharing, rate, lan_bytes_per_s))
            run = Run(
                case=case, ranks=placed, schedule=built.schedule, connections=connections, equal_split=equal
            )
            few = connections == 1
            rows.append(
                Step(
                    name=name,
                    build=partial(OurRank, run),
                    simulated_s=simulated_s,
                    warm_up=1 if few else 2,
                    iterations=1 if few else 5,
                )
            )
    return rows


def _built(scenario: Scenario) -> tuple[Built, float]:
    """The schedule of a scenario, and the seconds that an iteration takes in the simulator."""
    built = build(scenario)
    if not isinstance(built, Built):
        raise RuntimeError(f"{scenario.policy}: {built.reason}")
    return built, time_schedule(scenario, built.schedule).makespan / 1e3


def _row(step: Step, done: Sequence[Iteration], seconds: float, baseline: tuple[float, float]) -> str:
    each = [one.seconds for one in done]
    wall_s = sum(each)
    packets, nbytes = (sum(getattr(one.forwarded, name) for one in done) for name in ("packets", "nbytes"))
    ratio, simulated = baseline[0] / seconds, baseline[1] / step.simulated_s
    values = (
        f"{seconds:.2f}",
        f"{min(each):.2f}–{max(each):.2f}",
        f"{step.simulated_s:.2f}",
        f"{seconds / step.simulated_s - 1:+.1%}",
        f"{ratio:.1f}",
        f"{simulated:.1f}",
        f"{ratio / simulated - 1:+.1%}",
        f"{sum(one.forwarded.cpu_s for one in done) / wall_s:.2f}",
        f"{sum(one.ranks_cpu_s for one in done) / wall_s:.2f}",
        f"{nbytes / max(1, packets) / 1e3:.1f}",
        str(sum(one.forwarded.dropped for one in done)),
        _load(),
    )
    return _line(step.name, values)


def _line(name: str, values: Sequence[str]) -> str:
    return f"{name:34}" + "".join(f"{value:>{width}}" for value, width in zip(values, _WIDTHS, strict=True))


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main()
