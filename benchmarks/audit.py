"""The audit's text search over many rows: median and slowest of 10 requests of each text.

    python -m benchmarks.audit [--rows 100000]

`gpt-7b-77777` is in one row of 100,000, `contract` in every third, `7b` is too short for the index.
"""

import argparse
import os
import statistics

from benchmarks.lists import scratch_site, timed

ASKED = ("", "?q=gpt-7b-77777", "?q=nothing-at-all", "?q=contract", "?q=7b", "?verb=launch&q=gpt-7b-777")
ROWS = """
INSERT INTO accounts_auditentry
    (at, actor_id, team_id, verb, object_type, object_id, object_label, request_id, message)
SELECT now() - i * interval '1 minute', %s, %s,
       (ARRAY['create', 'change', 'delete', 'launch', 'cancel'])[1 + i %% 5],
       (ARRAY['run', 'node', 'plan', 'datacenter'])[1 + i %% 4], i::text, 'gpt-7b-' || i, md5(i::text),
       CASE WHEN i %% 3 = 0 THEN 'Price of the new contract with somebody ' || i ELSE '' END
FROM generate_series(1, %s) AS i
"""


def main(rows: int) -> None:
    """Fill a scratch site and print the table."""
    from django.core.management import call_command
    from django.db import connection

    from tests.site.world import make_world

    call_command("migrate", verbosity=0)
    world = make_world()
    admin = world.users["admin"]
    with connection.cursor() as cursor:
        cursor.execute(ROWS, [admin.pk, world.team.pk, rows])
        cursor.execute("VACUUM ANALYZE accounts_auditentry")  # as autovacuum does within a minute
    client = world.client("admin")
    print(f"{rows:,} audit rows; load {os.getloadavg()[0]:.1f}\n")
    print(f"{'search':<32}{'median ms':>10}{'slowest ms':>12}{'CPU ms':>8}")
    for query in ASKED:
        times = [timed(client, f"/audit/{query}") for _ in range(11)][1:]  # the first fills caches
        walls, cpus = zip(*times, strict=True)
        row = f"{query or '(all)':<32}{statistics.median(walls):>10.0f}{max(walls):>12.0f}"
        print(f"{row}{statistics.median(cpus):>8.0f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    asked = parser.parse_args()
    with scratch_site():
        main(asked.rows)
