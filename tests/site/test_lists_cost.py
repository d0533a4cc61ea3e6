"""Every page with a table, the overview and the map cost what the baseline says, at 10 and at 1,000 rows.

Pages are found from the matrix of addresses (access.py), which has every URL of the resolver; what each costs
stands in list_baselines.json. After a change that is meant to cost more:
LIST_BASELINES=write python -m pytest tests/site/test_lists_cost.py
"""

import json
import os
from pathlib import Path
from typing import Any

import django_tables2 as tables
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.site.many import addresses, fill, teams
from tests.site.world import World

BASELINES = Path(__file__).with_name("list_baselines.json")
ROWS = 1000
# Lists that hold what cannot be made in any number, with the reason.
SHORT = {
    "inventory:gputype-list": "the catalogue that ships",
    "inventory:gputype-detail": "a quarter of the data centres have its GPUs",
    "inventory:region-list": "the catalogue that ships",
}


# Pages that gather from lists, without a table of rows that can be paged.
GATHERING = ("overview", "inventory:map")


def tables_of(response: Any) -> list[tables.Table]:
    """The tables that a page shows."""
    seen: dict[int, tables.Table] = {}
    for layer in getattr(response, "context", None) or ():
        for entry in layer:
            values = entry.values() if hasattr(entry, "values") else ()
            seen |= {id(value): value for value in values if isinstance(value, tables.Table)}
    return list(seen.values())


def measure(client: Client, name: str, url: str) -> int | None:
    """Queries of one page; None where it shows no list."""
    first = client.get(url)  # fills what is kept between requests
    if name not in GATHERING and (first.streaming or not tables_of(first)):
        return None
    with CaptureQueriesContext(connection) as captured:
        client.get(url)
    return len(captured)


def costs(world: World, urls: dict[str, str]) -> dict[str, int]:
    """URL name → queries, of the pages with tables."""
    client = world.client("admin")
    found = {name: measure(client, name, url) for name, url in urls.items()}
    return {name: queries for name, queries in found.items() if queries is not None}


@pytest.mark.timeout(600)
def test_pages_with_tables_cost_what_the_baseline_says(world: World) -> None:
    fill(world, range(10))
    teams(world, range(10))
    urls = addresses(world)
    few = costs(world, urls)
    fill(world, range(10, ROWS))
    teams(world, range(10, ROWS))
    many = costs(world, {name: urls[name] for name in few})
    assert few == many, "these pages cost more with more rows"
    if os.environ.get("LIST_BASELINES") == "write":
        BASELINES.write_text(json.dumps(few, indent=2, sort_keys=True) + "\n")
    assert few == json.loads(BASELINES.read_text()), (
        f"mend the page, or write {BASELINES.name} anew (see above)"
    )
    rows = {name: longest(world, urls[name]) for name in few if name not in GATHERING}
    short = {name: n for name, n in rows.items() if n < ROWS // 2 and name not in SHORT}
    assert not short, f"tests/site/many.py makes too few rows for {short}"


def longest(world: World, url: str) -> int:
    """Rows of the longest table of a page."""
    shown = tables_of(world.client("admin").get(url))
    return max(table.paginator.count if table.paginator else len(table.rows) for table in shown)
