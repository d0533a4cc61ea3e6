"""What a run that has ended sent between data centres, and what that cost, as its page lists it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from webapp.jobs.models import Run

MOST_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WanTraffic:
    """One direction between two data centres, or all of them.

    pipeline_bytes : of activations and their gradients, between stages.
    gradient_bytes : of gradients that the replicas of a stage sum.
    egress_bytes : all that left.
    latency_ms : one way, as last measured; None where it was not.
    cost : of it in dollars; None where the job has no price.
    """

    source: str = ""
    target: str = ""
    pipeline_bytes: int
    gradient_bytes: int
    egress_bytes: int
    latency_ms: float | None
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WanTable:
    """The MOST_ROWS directions that carried the most, and the total of all `count`."""

    rows: Sequence[WanTraffic]
    count: int
    total: WanTraffic


def wan_table(run: Run) -> WanTable:
    """The directions that `run` used; none before its result is there."""
    rows = (run.result or {}).get("wan") or []
    directions: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        directions.setdefault((row["from"], row["to"]), []).append(row)
    traffic = [_traffic(of, source=ends[0], target=ends[1]) for ends, of in directions.items()]
    traffic.sort(key=lambda way: -way.egress_bytes)
    return WanTable(rows=traffic[:MOST_ROWS], count=len(traffic), total=_traffic(rows))


def _traffic(rows: Sequence[dict[str, Any]], **ends: str) -> WanTraffic:
    sums = [row["bytes"] for row in rows if _is_of_one_stage(row)]
    costs = [row.get("egress_cost") for row in rows]
    known_costs = [cost for cost in costs if cost is not None]
    return WanTraffic(
        **ends,
        pipeline_bytes=sum(row["bytes"] for row in rows) - sum(sums),
        gradient_bytes=sum(sums),
        egress_bytes=sum(row["egress_bytes"] for row in rows),
        latency_ms=max((ms for row in rows if (ms := row.get("latency_ms")) is not None), default=None),
        cost=sum(known_costs) if known_costs and len(known_costs) == len(costs) else None,
    )


def _is_of_one_stage(row: dict[str, Any]) -> bool:
    """Whether it is of replicas' gradients; results of earlier versions have only rows between stages."""
    return "from_stage" in row and row["from_stage"] == row["to_stage"]
