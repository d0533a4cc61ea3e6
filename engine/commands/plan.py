"""`meridian plan FILE`: every number of DP-cells with its time, throughput and cost, and the best option."""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import click

from engine.commands.files import folder, write_json, write_rows
from engine.commands.layer_tables import with_tables
from engine.commands.model_files import with_model
from engine.commands.plan_cross_dc import comparisons, cross_dc_lines
from engine.commands.plan_what_if import what_if_lines, what_ifs
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.commands.variants import batches_option, recompute_option
from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import parse
from engine.model.flops import Recompute
from engine.plan.request import PlanRequest
from engine.plan.result import Option, PlanResult
from engine.schedule.contention import schedule_name
from engine.schedule.registry import name_of

# With more data centres than this, their GPUs are one column of text.
MOST_COLUMNS = 6
# A longer run of options that do not fit is cut to its first.
LONGEST_RUN = 3


@click.command("plan")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for result.json and options.csv.")
@click.option(
    "--what-if",
    is_flag=True,
    help="Also plan without each data centre, with each link at half its bandwidth, with each price doubled.",
)
@click.option(
    "--cross-dc",
    is_flag=True,
    help="Also compare with data parallelism over the WAN, at larger global batches and other recomputation.",
)
@batches_option
@recompute_option
def command(
    file: str,
    as_json: bool,
    out: Path | None,
    what_if: bool,
    cross_dc: bool,
    batches: list[int],
    recompute: list[Recompute],
) -> None:
    """Choose data centres and the number of DP-cells for a training job.

    FILE (JSON or YAML, - for standard input) lists data centres, links and the job; method: search (default)
    or algorithm1. job.model: a preset, a shape, or a config.json of Hugging Face, also its file or folder.
    """
    document = with_model(load_document(file), "job", "model")
    tables = ("times", "sizes")
    document = with_tables(document, *(("job", "layer_profiles", name) for name in tables))
    if (batches or recompute) and not cross_dc:
        name, values = ("--batches", str(batches)) if batches else ("--recompute", str(recompute))
        raise InputError(name, values.strip("[]"), "goes with --cross-dc")
    request = parse(PlanRequest, document)
    result = _planned(request)
    further = {
        "what_if": what_ifs(document) if what_if else [],
        "cross_dc": comparisons(request, batches, recompute) if cross_dc else [],
    }
    if out is not None:
        _write(result, further, out)
    more = chain(what_if_lines(further["what_if"]), cross_dc_lines(further["cross_dc"]))
    show(as_json, lambda: _answer(result, further), lambda: chain(lines(request, result), more))


def _planned(request: PlanRequest) -> PlanResult:
    from engine.commands.compiled import announce_compilation
    from engine.plan.answer import plan  # compiled kernels: not loaded for a document that is wrong

    announce_compilation()
    return plan(request)


def _answer(result: PlanResult, further: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return result.as_dict() | {name: rows for name, rows in further.items() if rows}


def _write(result: PlanResult, further: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """Writes the answer and its options. Raises InputError if the folder cannot be created or written."""
    write_json(_answer(result, further), folder(out) / "result.json")
    rows = [_flat(option) for option in result.options]
    write_rows(list(rows[0]) if rows else [], (list(row.values()) for row in rows), out / "options.csv")


def _flat(option: Option) -> dict[str, Any]:
    """The option with a text where it has more than one value: east 4, mid 2."""
    parts = {"partitions": {part.dc: part.stages for part in option.partitions}}
    memory = {"memory_per_stage": [use.total_bytes for use in option.memory_per_stage or ()]}
    return {name: _text(value) for name, value in (option.as_dict() | parts | memory).items()}


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def lines(request: PlanRequest, result: PlanResult) -> Iterator[str]:
    """The readable answer, line by line."""
    yield (
        f"{name_of(result.policy)}, {result.cell_pipelines} pipelines per DP-cell "
        f"(C = {result.comm_to_compute:.4g}); "
        f"{_stages(request, result)} stages, {request.job.microbatches} microbatches"
    )
    yield (
        f"per stage: forward {result.forward_ms:.4g} ms, recompute {result.recompute_ms:.4g}, "
        f"backward {result.backward_ms:.4g}; a WAN transfer {result.transfer_ms:.4g} ms on one share"
    )
    yield ""
    yield from _options(request, result)
    yield ""
    yield _verdict(result)
    if request.job.layers_per_stage != "even" and result.best is not None:
        yield f"layers per stage: {_text(result.options[result.best].layers_per_stage)}"
    yield from _tied(result)
    if result.search:
        yield f"search: {_COMPLETE[result.search.stopped_by]}"
    for a, b in result.symmetrised:
        yield f"link {a} – {b}: its two directions differ; their mean counts in both"
    for dc in result.excluded:
        yield f"not used: {dc.dc}: {dc.reason}"


def _stages(request: PlanRequest, result: PlanResult) -> int:
    best = request.job.layouts[0].partitions
    return best if result.best is None else sum(p.stages for p in result.options[result.best].partitions)


def _options(request: PlanRequest, result: PlanResult) -> Iterator[str]:
    """The table, with a sentence in place of each option that has no figures."""
    names = [name for name in request.names if any(name in option.gpus_used for option in result.options)]
    timed = [(i, option) for i, option in enumerate(result.options) if option.iteration_ms is not None]
    table = render(_head(names), [_row(result, i, option, names) for i, option in timed], left=_left(names))
    depth = len(table) - len(timed)
    if timed:
        yield from table[:depth]
    rows = iter(table[depth:])
    for has_figures, group in groupby(result.options, key=lambda option: option.iteration_ms is not None):
        if has_figures:
            yield from (next(rows) for _ in group)
        else:
            yield from _sentences(list(group))


def _sentences(options: Sequence[Option]) -> Iterator[str]:
    shown = options if len(options) <= LONGEST_RUN else options[:1]
    for option in shown:
        yield f"D = {option.dp_cells}: infeasible: {option.reason}"
    if len(shown) < len(options):
        yield f"D = {options[1].dp_cells} to {options[-1].dp_cells}: infeasible too"


def _head(names: Sequence[str]) -> list[str]:
    figures = [
        "D",
        "pipelines",
        "iteration\nms",
        "all-reduce\nms",
        "throughput\npipelines/s",
        "tokens\n/s",
        "busy\n%",
        "egress\nGB",
        "cost\n$/iteration",
        "cost\n$/M tokens",
    ]
    return [*figures, *_gpu_head(names), ""]


def _gpu_head(names: Sequence[str]) -> list[str]:
    return [f"GPUs\n{name}" for name in names] if len(names) <= MOST_COLUMNS else ["GPUs"]


def _left(names: Sequence[str]) -> tuple[int, ...]:
    columns = len(_head(names))
    return (columns - 1,) if len(names) <= MOST_COLUMNS else (columns - 2, columns - 1)


def _row(result: PlanResult, index: int, option: Option, names: Sequence[str]) -> list[str | None]:
    used = option.gpus_used
    gpus = [str(used[name]) if name in used else None for name in names]
    if len(names) > MOST_COLUMNS:
        gpus = [", ".join(f"{name} {n}" for name, n in used.items())]
    return [
        str(option.dp_cells),
        str(option.pipelines),
        number(option.iteration_ms, 1),
        number(option.allreduce_ms, 1),
        number(option.throughput, 3),
        number(option.tokens_per_s, 0),
        number(None if option.utilization is None else 100 * option.utilization, 1),
        number(option.egress_gb, 1),
        number(option.cost_per_iteration, 4),
        number(option.cost_per_million_tokens, 4),
        *gpus,
        _remark(result, index, option),
    ]


def _remark(result: PlanResult, index: int, option: Option) -> str:
    if not option.feasible:
        return option.reason or ""
    remarks = ["best"] if index == result.best else []
    return ", ".join([*remarks, "Pareto"] if index in result.pareto else remarks)


def _verdict(result: PlanResult) -> str:
    if result.best is None:
        return f"infeasible: {result.reason}"
    best = result.options[result.best]
    placed = ", ".join(f"{part.stages} stages in {part.dc}" for part in best.partitions)
    objective = result.objective.replace("_", " ")
    gpus = f"{sum(best.gpus_used.values()):,} GPUs"
    name = schedule_name(best.policy, best.contention)
    schedule = "" if name == name_of(result.policy) else f", schedule {name}"
    return f"best for {objective}: D = {best.dp_cells}: {placed}; {gpus}{schedule}"


def _tied(result: PlanResult) -> Iterator[str]:
    best = None if result.best is None else result.options[result.best]
    if best is None or best.tied_ms is None:
        return
    counted = "in all-reduce and egress" if result.method == "search" else "in iteration and cost alone"
    crosses = f", {best.tied_egress_gb:,.3f} GB over the WAN" if best.tied_egress_gb else ""
    took = f"first and last stage sum its gradients in {best.tied_ms:,.1f} ms"
    yield f"tied embedding: {took}{crosses} ({counted})"


_COMPLETE = {
    "proven": "no route, split or number of DP-cells is better with the schedules tried",
    "candidates": "not every route or split was tried",
    "sampled": "not every number of DP-cells was tried",
    "budget": "some candidates that could be better were not tried",
    "cancelled": "cancelled; some candidates that could be better were not tried",
}
