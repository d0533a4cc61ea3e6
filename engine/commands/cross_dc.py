"""`meridian cross-dc FILE`: data against pipeline parallelism over the WAN, and where they cross over."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from engine.commands.files import folder, write_json, write_rows
from engine.commands.layer_tables import with_tables
from engine.commands.model_files import with_model
from engine.commands.plan_cross_dc import LONG, RECOMPUTE_NAMES, SHORT
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.commands.variants import batches_option, recompute_option
from engine.documents import load_document
from engine.inputs import parse
from engine.model.flops import Recompute
from engine.plan.cross_dc_compare import CrossDcResult, Crossover, Figures, Point, Variant, compare_cross_dc
from engine.plan.cross_dc_request import CrossDcRequest
from engine.schedule.registry import name_of


@click.command("cross-dc")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for result.json and points.csv.")
@batches_option
@recompute_option
def command(
    file: str, as_json: bool, out: Path | None, batches: list[int], recompute: list[Recompute]
) -> None:
    """Compare data and pipeline parallelism across data centres.

    FILE (JSON or YAML, - for standard input): datacenters and job as for `meridian plan`, replicas, boundary
    {bandwidth_gbps, latency_ms, egress_price_per_gb} with one value or a list of each, policies, sends,
    batches, recompute. --batches and --recompute stand for those of the document.
    """
    document = with_model(load_document(file), "job", "model")
    document = with_tables(document, *(("job", "layer_profiles", name) for name in ("times", "sizes")))
    if isinstance(document, dict):
        options = {"batches": batches, "recompute": recompute}
        document = document | {name: values for name, values in options.items() if values}
    request = parse(CrossDcRequest, document)
    result = _compared(request)
    if out is not None:
        _write(result, out)
    show(as_json, result.as_dict, lambda: lines(request, result))


def _compared(request: CrossDcRequest) -> CrossDcResult:
    from engine.commands.compiled import announce_compilation  # not for a document that is wrong

    announce_compilation()
    return compare_cross_dc(request)


def _write(result: CrossDcResult, out: Path) -> None:
    """Writes the answer and its points. Raises InputError if the folder cannot be created or written."""
    answer = result.as_dict()
    write_json(answer, folder(out) / "result.json")
    rows = [_flat({"batch_factor": 1, "recompute": None, **point}) for point in answer["points"]]
    for variant in answer.get("variants", ()):
        named = {name: variant[name] for name in ("batch_factor", "recompute")}
        rows += [_flat(named | point) for point in variant["points"]]
    write_rows(list(rows[0]) if rows else [], (list(row.values()) for row in rows), out / "points.csv")


def _flat(point: dict[str, Any]) -> dict[str, Any]:
    """The point with a column for each figure of the two: data_iteration_ms."""
    flat: dict[str, Any] = {}
    for name, value in point.items():
        flat |= (
            {f"{name}_{key}": part for key, part in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return flat


def lines(request: CrossDcRequest, result: CrossDcResult) -> Iterator[str]:
    """The readable answer, line by line."""
    layout = request.job.layouts[0]
    yield (
        f"{request.replicas} pipelines of {layout.partitions} stages over {request.dcs} data centres, "
        f"{request.job.microbatches} microbatches; {result.gpus_per_dc:,} GPUs in each"
    )
    yield f"gradients {result.gradient_gb:,.4g} GB, an activation {result.activation_mb:,.4g} MB"
    yield ""
    if not result.points:
        yield f"infeasible: {result.reason}"
        return
    priced = request.boundary.egress_price_per_gb is not None
    yield from render(_head(priced), [_row(point, priced) for point in result.points], left=(-1,))
    yield ""
    yield from _verdict(result)
    for variant in result.variants:
        yield from _variant(variant, priced)


def _variant(variant: Variant, priced: bool) -> Iterator[str]:
    yield ""
    yield _title(variant)
    if not variant.points:
        yield f"infeasible: {variant.reason}"
        return
    yield from render(_head(priced), [_row(point, priced) for point in variant.points], left=(-1,))
    yield ""
    yield from _verdict(variant)


def _title(variant: Variant) -> str:
    parts = [] if variant.batch_factor == 1 else [f"a global batch {variant.batch_factor:,} times as large"]
    return ", ".join(parts + ([RECOMPUTE_NAMES[variant.recompute]] if variant.recompute else [])) + ":"


def _head(priced: bool) -> list[str]:
    """Columns of each of the two: DP, data parallelism, and PP, pipeline parallelism over the WAN."""
    columns = ["iteration\nms", "idle\n%", "WAN\nGB", *(["egress\n$", "cost\n$/iteration"] if priced else [])]
    both = [f"{kind} {column}" for kind in ("DP", "PP") for column in columns]
    return ["latency\nms", "boundary\nGbps", *both, "DP / PP", "better, its schedule"]


def _row(point: Point, priced: bool) -> list[str | None]:
    best = point.pipeline if point.better == "pipeline" else point.data
    return [
        f"{point.latency_ms:g}",
        f"{point.bandwidth_gbps:g}",
        *_cells(point.data, priced),
        *_cells(point.pipeline, priced),
        number(point.speedup),
        f"{SHORT[point.better]}, {name_of(best.policy)}",
    ]


def _cells(figures: Figures, priced: bool) -> list[str | None]:
    cells = [
        number(figures.iteration_ms, 1),
        number(100 * figures.bubble_fraction, 1),
        number(figures.wan_gb, 1),
    ]
    prices = [number(figures.egress_cost), number(figures.cost_per_iteration)]
    return cells + prices if priced else cells


def _verdict(result: CrossDcResult | Variant) -> Iterator[str]:
    """Who is better, and from where on."""
    kinds = {point.better for point in result.points}
    if len(kinds) == 1:
        yield f"{LONG[kinds.pop()]} is faster at every point"
    yield from map(_crossover, result.crossovers)


def _crossover(crossover: Crossover) -> str:
    before, after = LONG[crossover.before], LONG[crossover.after]
    if crossover.axis == "bandwidth_gbps":
        where = f"at {crossover.latency_ms:g} ms: from {crossover.bandwidth_gbps:.3g} Gbps on"
    else:
        where = f"at {crossover.bandwidth_gbps:g} Gbps: from {crossover.latency_ms:.3g} ms on"
    return f"{where} {after} is faster, below that {before}"
