"""`meridian place FILE`: the device of each stage of each pipeline, over unequal links."""

from collections.abc import Iterator
from pathlib import Path

import click

from engine.commands.files import folder, write_json, write_rows
from engine.commands.model_files import with_model
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.documents import load_document
from engine.inputs import parse
from engine.plan.placement.request import PlacementRequest
from engine.plan.placement.result import Placement

# A list of devices longer than this is cut in the table.
LONGEST_LIST = 16


@click.command("place")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option(
    "--baselines",
    is_flag=True,
    help="Also show random placement, Kernighan-Lin and a plain genetic algorithm, scored in the same way.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for result.json and history.csv.")
def command(file: str, as_json: bool, baselines: bool, out: Path | None) -> None:
    """Place the stages of pipelines on devices whose links differ.

    FILE (JSON or YAML, - for standard input): latency_ms and bandwidth_gbps (N x N), stages, data_parallel,
    dp_bytes and pp_bytes, or model (a preset, a shape, a config.json of Hugging Face or its file) and batch;
    seed, evaluations, seconds; or scenario: on-demand, spot, multi-dc, regional or worldwide.
    """
    request = parse(PlacementRequest, with_model(load_document(file), "model"))
    placement = _placed(request, baselines)
    if out is not None:
        _write(placement, out)
    show(as_json, placement.as_dict, lambda: lines(placement))


def _placed(request: PlacementRequest, with_baselines: bool) -> Placement:
    from engine.commands.compiled import announce_placement_compilation
    from engine.plan.placement.place import place  # compiled kernels: not loaded for a document that is wrong

    announce_placement_compilation()
    return place(request, with_baselines=with_baselines)


def lines(placement: Placement) -> Iterator[str]:
    """The readable answer, line by line."""
    stages, pipelines = len(placement.groups), len(placement.pipelines)
    yield f"{stages * pipelines:,} devices: {stages} stages × {pipelines} pipelines, seed {placement.seed}"
    yield _search_line(placement)
    yield ""
    head = ["stage", "devices", "data-parallel\ns", "to the next\ns"]
    hops: list[float | None] = [*placement.hop_cost_s, None]
    rows = [
        (str(i), _devices(group), number(cost, 4), number(hop, 4))
        for i, (group, cost, hop) in enumerate(
            zip(placement.groups, placement.group_cost_s, hops, strict=True)
        )
    ]
    yield from render(head, rows, left=(1,))
    yield ""
    yield from _totals(placement)


def _search_line(placement: Placement) -> str:
    looked = f"{placement.evaluations:,} of {placement.limit:,} evaluations in {placement.search_s:.2f} s"
    ended = {
        "evaluations": "the limit",
        "bounds": "bounds ruled out the remaining candidates",
        "proven": "every partition was evaluated: this is the optimum",
        "seconds": "time limit",
        "cancelled": "cancelled",
    }[placement.stopped_by]
    return f"{looked} ({ended}){'; links averaged over both directions' if placement.symmetrised else ''}"


def _devices(group: tuple[int, ...]) -> str:
    shown = " ".join(str(device) for device in group[:LONGEST_LIST])
    return shown if len(group) <= LONGEST_LIST else f"{shown} … ({len(group)})"


def _totals(placement: Placement) -> Iterator[str]:
    exact = "shortest order" if placement.exact_order else "order by 2-opt and or-opt"
    yield f"data parallel   {number(placement.dp_cost_s, 4)} s"
    yield f"pipeline        {number(placement.pp_cost_s, 4)} s  ({exact})"
    yield f"communication   {number(placement.cost_s, 4)} s an iteration"
    compared = [*placement.starts, *placement.baselines]
    if compared:
        yield ""
        yield from render(
            ["the same inner solve on", "s", "against ours"],
            [(one.name, number(one.cost_s, 4), _times(one.cost_s, placement.cost_s)) for one in compared],
            left=(0,),
        )


def _times(cost_s: float, ours_s: float) -> str | None:
    return f"{cost_s / ours_s:.2f} ×" if ours_s > 0 else None


def _write(placement: Placement, out: Path) -> None:
    """Writes the answer and the cost over evaluations. Raises InputError if the folder cannot be written."""
    write_json(placement.as_dict(), folder(out) / "result.json")
    write_rows(["evaluations", "cost_s"], placement.history, out / "history.csv")
