"""Find or go to: p50 and p95 of one search, by length of what was typed.

    python -m benchmarks.find [--objects 10000] [--requests 40]

Fills a scratch site with that many data centres, nodes, links, plans, runs, placements, comparisons,
tenancies and people, and asks as the field does, for one user who sees them all. The bar: 100 ms
(docs/bars.md).
"""

import argparse
import os
import statistics

from benchmarks.lists import scratch_site, timed

ASKED = ("g", "gp", "gpt", "gpt-7b", "us-east", "us-east-1", "ada", "east mid", "n", "nowhere-at-all", "#1")


def counts() -> dict[str, int]:
    """How many objects of each kind there are to find."""
    from webapp.accounts.models import Team, User
    from webapp.computations.models import Computation
    from webapp.inventory.models import DataCenter, Node, WanLink
    from webapp.jobs.models import Run
    from webapp.planning.models import Plan
    from webapp.prefill.models import Tenancy

    kinds = (DataCenter, Node, WanLink, Plan, Run, Computation, Tenancy, User, Team)
    return {kind.__name__: kind._default_manager.count() for kind in kinds}


def main(objects: int, requests: int) -> None:
    """Fill a scratch site and print the table."""
    from django.core.management import call_command
    from django.db import connection

    from tests.site.many import fill
    from tests.site.world import make_world

    call_command("migrate", verbosity=0)
    world = make_world()
    count, rows = 0, counts()
    while sum(rows.values()) < objects:
        fill(world, range(count, count + 250))
        count, rows = count + 250, counts()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")  # as autovacuum does within a minute
    client = world.client("admin")
    load = os.getloadavg()[0]
    print(f"{sum(rows.values()):,} objects ({rows}), {requests} requests each; load {load:.1f}\n")
    print(f"{'typed':<18}{'p50 ms':>8}{'p95 ms':>8}{'CPU ms':>8}")
    walls = []
    for text in ASKED:
        times = [timed(client, f"/search?part=1&q={text.replace('#', '%23')}") for _ in range(requests + 1)][
            1:
        ]
        wall, cpu = zip(*times, strict=True)
        walls += wall
        print(
            f"{text:<18}{statistics.median(wall):>8.0f}{_p95(wall):>8.0f}{statistics.median(cpu):>8.0f}",
            flush=True,
        )
    print(f"{'all':<18}{statistics.median(walls):>8.0f}{_p95(walls):>8.0f}")


def _p95(times: list[float] | tuple[float, ...]) -> float:
    return statistics.quantiles(times, n=20)[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=40)
    asked = parser.parse_args()
    with scratch_site():
        main(asked.objects, asked.requests)
