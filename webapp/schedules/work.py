"""The work at comparisons: policies on one scenario, and one parameter over policies."""

from collections.abc import Iterator
from typing import Any

from engine.inputs import parse
from engine.simulate import Compared, SweepDocument, compare, sweep
from webapp.computations.wires import Wires


def compare_schedules(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"results": […]}: one entry a policy, without spans, with the schedule as text."""
    policies = request["policies"]
    wires.of = len(policies)
    results: list[dict[str, Any]] = []
    for compared in compare(request["scenario"], policies, wires.search):
        results.append(_figures_of(compared))
        yield {"results": results}


def _figures_of(compared: Compared) -> dict[str, Any]:
    """What of a result is kept: figures and the schedule's text; spans are made again when they are drawn."""
    answer = {name: value for name, value in compared.as_dict().items() if name not in ("spans", "bubbles")}
    answer["policy"] = compared.policy
    timeline = compared.result.timeline if compared.result else None
    if timeline is not None:
        count, mean = timeline.bubbles()
        answer["bubble_count"] = int(count.sum())
        answer["bubble_mean"] = float((count * mean).sum() / max(1, count.sum()))
        answer["schedule"] = str(timeline.schedule)
    return answer


def sweep_parameter(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"rows": […]}: the rows of `meridian sweep`, as they come."""
    document = parse(SweepDocument, request)
    wires.of = len(document.values) * len(document.policies)
    rows: list[dict[str, Any]] = []
    for row in sweep(document, wires.search):
        rows.append(row.as_dict())
        yield {"rows": rows}
