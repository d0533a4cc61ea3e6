"""Server time of every page with a table at 1,000 rows: median and slowest of 20 requests, and its queries.

    python benchmarks/lists.py [--rows 1000] [--requests 20]

Runs its own servers in a scratch folder. The bar: under 100 ms for every list (docs/bars.md).
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main(rows: int, requests: int) -> None:
    """Fill a scratch site and print the table."""
    from django.core.management import call_command
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from tests.site.addresses import addresses
    from tests.site.many import fill, teams
    from tests.site.test_lists_cost import BASELINES
    from tests.site.world import make_world

    call_command("migrate", verbosity=0)
    world = make_world()
    fill(world, range(rows))
    teams(world, range(rows))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")  # autovacuum would have by now
    client = world.client("admin")
    print(f"{rows:,} rows of everything, {requests} requests each; load {os.getloadavg()[0]:.1f}\n")
    print(f"{'page':<36}{'median ms':>10}{'slowest ms':>12}{'CPU ms':>8}{'queries':>9}")
    urls = addresses(world)
    for name in json.loads(BASELINES.read_text()):
        times = [timed(client, urls[name]) for _ in range(requests + 1)][1:]  # the first fills caches
        walls, cpus = zip(*times, strict=True)
        with CaptureQueriesContext(connection) as queries:
            client.get(urls[name], HTTP_HOST="127.0.0.1")
        row = f"{name:<36}{statistics.median(walls):>10.0f}{max(walls):>12.0f}"
        print(f"{row}{statistics.median(cpus):>8.0f}{len(queries):>9}", flush=True)


def timed(client: Any, url: str) -> tuple[float, float]:
    """Milliseconds of one request: by the clock, and of this process's processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = client.get(url, HTTP_HOST="127.0.0.1")
    assert answer.status_code == 200, url
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


@contextmanager
def scratch_site() -> Iterator[None]:
    """Django with servers of its own in a folder that goes away."""
    from webapp.servers import running

    var = Path(tempfile.mkdtemp(prefix="meridian-"))
    var.chmod(0o711)  # as root the servers run as another account: their data stays in here
    with running(var) as urls:
        os.environ.update(
            DJANGO_SETTINGS_MODULE="webapp.settings",
            MERIDIAN_VAR=str(var),
            DATABASE_URL=urls.database_url,
            VALKEY_URL=urls.valkey_url,
            MERIDIAN_LOG="CRITICAL",
        )
        import django

        django.setup()
        try:
            yield
        finally:
            from django.db import connections

            connections.close_all()
    shutil.rmtree(var, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=20)
    asked = parser.parse_args()
    with scratch_site():
        main(asked.rows, asked.requests)
