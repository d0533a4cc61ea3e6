"""`meridian plan --cross-dc`: the plan's pipelines against data parallelism over the WAN."""

from collections.abc import Iterator, Sequence
from typing import Any

from engine.commands.tables import number, render
from engine.model.flops import Recompute
from engine.plan.request import PlanRequest

SHORT = {"data": "DP", "pipeline": "PP"}
LONG = {"data": "data parallelism", "pipeline": "pipeline parallelism"}
RECOMPUTE_NAMES = {
    "none": "no recomputation",
    "selective": "selective recomputation",
    "full": "recomputation",
}


def comparisons(
    request: PlanRequest, batches: Sequence[int], recompute: Sequence[Recompute]
) -> list[dict[str, Any]]:
    """Both for every global batch and recomputation; without any, for those that the page of a plan shows.

    Raises InputError as `compare_plan`.
    """
    from engine.plan.cross_dc_plan import compare_plan, default_variants  # compiled kernels

    named: list[tuple[int, Recompute | None]] = [
        (factor, mode) for mode in recompute or (None,) for factor in batches or (1,)
    ]
    variants = named if batches or recompute else default_variants(request)
    return [one.as_dict() for one in compare_plan(request, variants)]


def cross_dc_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of `comparisons` and a sentence for each of those that cannot be; nothing without rows."""
    if not rows:
        return
    yield ""
    yield "the plan's pipelines (PP) against data parallelism over the WAN (DP), for the same global batch"
    columns = ["iteration\nms", "WAN\nGB", "egress\n$", "cost\n$/iteration", "boundary\nGbps"]
    both = [f"{kind} {column}" for kind in ("PP", "DP") for column in columns]
    head = ["batch\n×", "recompute", *both, "faster\n", "by\n×", "DP faster\nfrom Gbps", "cheaper\n"]
    yield from render(head, [_cells(row) for row in rows], left=(1,))
    for row in rows:
        for kind in ("pipeline", "data"):
            if reason := row[kind]["reason"]:
                yield f"{_named(row)}: {LONG[kind]}: {reason}"
    if placed := _placed(rows[0]["data"]):
        yield placed


def _cells(row: dict[str, Any]) -> list[str | None]:
    return [
        str(row["batch_factor"]),
        row["recompute"] or "as planned",
        *_figures(row["pipeline"]),
        *_figures(row["data"]),
        row["faster"] and SHORT[row["faster"]],
        number(row["speedup"]),
        number(row["break_even_gbps"], 1),
        row["cheaper"] and SHORT[row["cheaper"]],
    ]


def _figures(one: dict[str, Any]) -> list[str | None]:
    return [
        number(one["iteration_ms"], 1),
        number(one["wan_gb"], 1),
        number(one["egress_cost"], 4),
        number(one["cost_per_iteration"], 4),
        number(one["boundary_gbps"], 0),
    ]


def _named(row: dict[str, Any]) -> str:
    mode = "" if row["recompute"] is None else f", {RECOMPUTE_NAMES[row['recompute']]}"
    return f"batch × {row['batch_factor']}{mode}"


def _placed(data: dict[str, Any]) -> str | None:
    """Where data parallelism has its pipelines, and what its boundary is."""
    if data["pipelines_per_dc"] is None:
        return None
    of_each = ", ".join(f"{count} in {name}" for name, count in data["pipelines_per_dc"].items())
    return (
        f"DP: {of_each}, of {data['stages']} stages; {data['node_pairs']} node pairs send over a boundary, "
        f"PP sends over one for each pipeline"
    )
