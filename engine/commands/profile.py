"""`meridian profile FILE`: how long each op of each pipeline stage takes on this machine."""

import json
import sys

import click

from engine.commands.tables import number, render
from engine.inputs import load_document, parse
from engine.runtime.profiling import NAMES, ProfileRequest, StageTimes, profile_stage


@click.command("profile")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(file: str, as_json: bool) -> None:
    """Measure the stages of a model on this machine, one after another.

    FILE (JSON or YAML, - for standard input): model {layers, hidden, heads, seq, …}, stages, micro_batch,
    device (cpu), dtype, recompute, split, repeats, seed.

    What --json prints can stand as `times_ms` in the file of `meridian train`.
    """
    request = parse(ProfileRequest, load_document(file))
    with click.progressbar(range(request.stages), label="stages", file=sys.stderr, hidden=as_json) as stages:
        rows = [profile_stage(request, stage) for stage in stages]
    if as_json:
        answer = {
            "device": request.device, "dtype": request.dtype, "micro_batch": request.micro_batch,
            "model": request.model.model_dump(exclude_none=True), "repeats": request.repeats,
            "rows": [row.as_dict() for row in rows],
        }  # fmt: skip
        click.echo(json.dumps(answer, allow_nan=False))
    else:
        click.echo("\n".join(_lines(rows)))


def _lines(rows: list[StageTimes]) -> list[str]:
    """Of each kind of op the median, and beside it the 95th percentile."""
    kinds = [name for name in NAMES.values() if name in rows[0].times_ms]
    columns = [title for kind in kinds for title in (f"{kind}\nms", "p95\nms")]
    cells = [
        [
            str(row.stage),
            f"{row.parameters:,}",
            f"{row.tokens:,}",
            *(number(ms, 2) for kind in kinds for ms in row.times_ms[kind]),
        ]
        for row in rows
    ]
    return render(["stage", "parameters", "tokens", *columns], cells)
