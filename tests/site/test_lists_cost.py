"""Every page with a table, the overview and the map cost what the baseline says, at 10 and at many rows.

Pages are found from the matrix of addresses (access.py), which has every URL of the resolver; what each costs
stands in list_baselines.json. After a change that is meant to cost more:
LIST_BASELINES=write python -m pytest tests/site/test_lists_cost.py
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django_tables2 as tables
import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.site.addresses import addresses
from tests.site.many import fill, teams
from tests.site.world import World

BASELINES = Path(__file__).with_name("list_baselines.json")
# Lists that hold what cannot be made in any number, with the reason.
SHORT = {
    "jobs:run-queue": "few of the many runs wait",
    "inventory:gputype-list": "the catalogue that ships",
    "inventory:gputype-detail": "a quarter of the data centres have its GPUs",
    "inventory:region-list": "the catalogue that ships",
    "prefill:usage-statement": "a row a tenancy that was used this month",
}


# Pages that gather from lists, without a table of rows that can be paged.
GATHERING = ("overview", "inventory:map")


@pytest.fixture(autouse=True)
def patient(settings: Any) -> None:
    """Nodes stay online for as long as a slow machine takes."""
    settings.NODE_SILENT_AFTER_S = 12 * 3600


def tables_of(response: Any) -> list[tables.Table]:
    """The tables that a page shows."""
    seen: dict[int, tables.Table] = {}
    for layer in getattr(response, "context", None) or ():
        for entry in layer:
            values = entry.values() if hasattr(entry, "values") else ()
            seen |= {id(value): value for value in values if isinstance(value, tables.Table)}
    return list(seen.values())


@dataclass(frozen=True, slots=True)
class Cost:
    """Queries of one page, and the rows of its longest table."""

    queries: int
    rows: int


def measure(client: Client, name: str, url: str) -> Cost | None:
    """What one page costs where nothing is cached; None where it shows no list."""
    cache.clear()  # what a page keeps for a minute may run out between two measurements
    with CaptureQueriesContext(connection) as captured:
        page = client.get(url)
    shown = () if page.streaming else tables_of(page)
    if not shown and name not in GATHERING:
        return None
    rows = [table.paginator.count if table.paginator else len(table.rows) for table in shown]
    return Cost(queries=len(captured), rows=max(rows, default=0))


def costs(world: World, urls: dict[str, str]) -> dict[str, Cost]:
    """URL name → cost, of the pages with tables."""
    client = world.client("admin")
    cost_by_page = {name: measure(client, name, url) for name, url in urls.items()}
    return {name: cost for name, cost in cost_by_page.items() if cost is not None}


def queries(cost_by_page: dict[str, Cost]) -> dict[str, int]:
    return {name: cost.queries for name, cost in cost_by_page.items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("most", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_pages_with_tables_cost_what_the_baseline_says(world: World, most: int) -> None:
    fill(world, range(10))
    teams(world, range(10))
    urls = addresses(world)
    lists = costs(world, urls)  # and what is kept between requests is there now
    urls = {name: urls[name] for name in lists}
    few = queries(costs(world, urls))
    fill(world, range(10, most))
    teams(world, range(10, most))
    full = costs(world, urls)
    assert few == queries(full), "these pages cost more with more rows"
    if os.environ.get("LIST_BASELINES") == "write":
        BASELINES.write_text(json.dumps(few, indent=2, sort_keys=True) + "\n")
    assert few == json.loads(BASELINES.read_text()), (
        f"mend the page, or write {BASELINES.name} anew (see above)"
    )
    short = {
        name: cost.rows
        for name, cost in full.items()
        if cost.rows < most // 2 and name not in (*SHORT, *GATHERING)
    }
    assert not short, f"tests/site/many.py makes too few rows for {short}"
