"""Sockets on one run of the demo, opened all at once: ``python benchmarks/sockets.py [COUNT …]``.

Prints, for each count (100, 300, 500), the time until each socket is open, until it has its snapshot, and how
late events come after ingest wrote them. The clients share the machine with the site and its twelve ranks.
"""

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.demo.crowd import Seen, percentile, watch  # noqa: E402
from tests.demo_alone.own import demo_of_its_own, first_run, operator_of, process_of  # noqa: E402

LISTEN_S = 15.0
TITLES = ("sockets", "refused", "open p50", "p99 s", "snap p50", "p99 s", "late p50", "p99 ms", "lost", "web")


def main() -> None:
    """Start a demo, and print one row per count."""
    counts = [int(text) for text in sys.argv[1:]] or [100, 300, 500]
    with demo_of_its_own() as demo:
        demo.start()
        client = operator_of(demo)
        run = first_run(demo, client)
        web = process_of(demo, "web")
        print(" ".join(f"{title:>8}" for title in TITLES), flush=True)
        for count in counts:
            before, began = sum(web.cpu_times()[:2]), time.monotonic()
            crowd = watch(client, f"/ws/runs/{run}/", count, LISTEN_S)
            busy = (sum(web.cpu_times()[:2]) - before) / (time.monotonic() - began)
            print(row(count, crowd, busy), flush=True)


def row(count: int, crowd: list[Seen], busy: float) -> str:
    """One line of the table; `busy` is the web process's share of a core."""
    opened = [seen.connect_s for seen in crowd if seen.connect_s is not None]
    drawn = [seen.snapshot_s for seen in crowd if seen.snapshot_s is not None]
    # The last hundred of each: the burst of snapshots is over by then.
    late = [1e3 * delay for seen in crowd for delay in seen.delays_s[-100:]]
    cells = [f"{percentile(values, p):8.2f}" for values in (opened, drawn) for p in (0.5, 0.99)]
    cells += [f"{percentile(late, p):8.0f}" for p in (0.5, 0.99)]
    refused = sum(bool(seen.fault) for seen in crowd)
    lost = sum(seen.gaps for seen in crowd)
    return f"{count:8} {refused:8} {' '.join(cells)} {lost:8} {busy:8.0%}"


if __name__ == "__main__":
    main()
