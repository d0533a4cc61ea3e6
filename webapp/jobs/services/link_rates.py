"""What a run that has ended knows of the links that it used."""

from typing import Any

import structlog
from django.core.exceptions import ValidationError

from webapp.inventory.models import LinkSource, WanLink
from webapp.inventory.selectors.pools import pools
from webapp.inventory.services import record_measurement
from webapp.jobs.models import Run

log = structlog.get_logger(__name__)


def record_link_rates(run: Run, result: dict[str, Any]) -> None:
    """Put what a node pair measured into the history of each link that `run` used: the rate while it sent, of
    the slower direction, and the latency. What is in use stays as it is."""
    rows: dict[frozenset[str], list[dict[str, Any]]] = {}
    for row in result.get("wan") or ():
        if row["gbps"]:
            rows.setdefault(frozenset((row["from"], row["to"])), []).append(row)
    named = pools(run.job.team, {name for ends in rows for name in ends})
    sites = {pool.dc_id for pool in named.values()}
    links = {
        frozenset((link.a_id, link.b_id)): link
        for link in WanLink.objects.filter(a__in=sites, b__in=sites).select_related("a__team")
    }
    for ends, directions in rows.items():
        link = links.get(frozenset(named[name].dc_id for name in ends if name in named))
        slower = min(directions, key=lambda row: row["gbps"])
        latencies_ms = [ms for row in directions if (ms := row.get("latency_ms")) is not None]
        if link is None:
            continue  # gone from the inventory since
        try:
            record_measurement(
                link,
                latency_ms=round(max(latencies_ms), 3) if latencies_ms else None,
                bandwidth_gbps=round(slower["gbps"], 4),
                connections=slower["connections"] or None,
                source=LinkSource.RUN,
                actor=None,
            )
        except ValidationError as error:
            log.warning("a run's figures of a link are none", link=link.pk, reason=str(error))
