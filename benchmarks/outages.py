"""How soon a killed part of the site is back: `python -m benchmarks.outages [--kills 3]`.

The demo trains while its parts are killed one after the other, a minute and more apart, as SIGKILL does. A
time runs from the kill until what that part is for happens again:

web       a page that is asked for at once is answered
postgres  /readyz is well again
valkey    /readyz is well again
ingest    an iteration that ended after the kill is on the run's page
control   the reconciler has run again
agent     an iteration that ended after the kill is on the run's page, from the ranks that trained on
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.demo.harness import Client, Demo, wait_for
from tests.demo_alone.own import (
    agent_of,
    demo_of_its_own,
    first_run,
    operator_of,
    process_of,
    progress,
    query,
    server_pid,
)

RECONCILER = "reconciler"  # as the site names its beat
APART_S = 62.0  # a part that has lived for a minute is started again at once
BAR_S = {"web": 2.0}


def _ready(client: Client) -> bool:
    try:
        return bool(client.json("/readyz")["ok"])
    except OSError:
        return False


def _page(client: Client) -> bool:
    return bool(client.get("/healthz"))


def _trains_on(client: Client, run: str) -> Callable[[], bool]:
    before = progress(client, run)
    return lambda: progress(client, run) > before + 1  # one may have ended before the kill


def _reconciled(demo: Demo) -> Callable[[], bool]:
    sql = "select max(at) from computations_beat where name = %s"
    before = query(demo, sql, RECONCILER)
    return lambda: query(demo, sql, RECONCILER) != before


def outages(demo: Demo, kills: int) -> dict[str, list[float]]:
    """Seconds of each outage, by part."""
    client = operator_of(demo.start())
    run = first_run(demo, client)
    parts: dict[str, tuple[Callable[[], psutil.Process], Callable[[], Callable[[], bool]]]] = {
        "web": (lambda: process_of(demo, "web"), lambda: lambda: _page(client)),
        "postgres": (lambda: psutil.Process(server_pid(demo, "postgres")), lambda: lambda: _ready(client)),
        "valkey": (lambda: psutil.Process(server_pid(demo, "valkey")), lambda: lambda: _ready(client)),
        "ingest": (lambda: process_of(demo, "ingest"), lambda: _trains_on(client, run)),
        "control": (lambda: process_of(demo, "control"), lambda: _reconciled(demo)),
        "agent": (lambda: agent_of(demo, "us-east-1"), lambda: _trains_on(client, run)),
    }
    took: dict[str, list[float]] = {part: [] for part in parts}
    for _ in range(kills):
        time.sleep(APART_S)
        for part, (process, again) in parts.items():
            wait_for("the site to be well", lambda: _ready(client), 60)
            victim, is_back = process(), again()
            began = time.monotonic()
            victim.kill()
            time.sleep(0.02)  # until the signal is there
            wait_for(f"{part} to be back", is_back, 120, every=0.05)
            took[part].append(time.monotonic() - began)
    return took


def main() -> int:
    """Print a row for each part; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=3, help="of each part (3)")
    arguments = parser.parse_args()
    with demo_of_its_own() as demo:
        took = outages(demo, arguments.kills)
    print(f"{'part':10s}{'kills':>6s}{'median s':>10s}{'longest s':>10s}")
    for part, seconds in took.items():
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"{part:10s}{len(seconds):6d}{middle:10.2f}{max(seconds):10.2f}")
    return int(any(max(took[part]) > bar for part, bar in BAR_S.items()))


if __name__ == "__main__":
    sys.exit(main())
