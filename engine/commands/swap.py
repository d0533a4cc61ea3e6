"""`meridian swap FILE`: one model on one GPU that cannot hold it, swapped from host memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from engine.commands.files import folder, write_json
from engine.commands.model_files import with_model
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.documents import load_document
from engine.inputs import parse
from engine.plan.swap.measured import layers_of
from engine.plan.swap.pipelines import NAMES
from engine.plan.swap.plan import plan_swap
from engine.plan.swap.request import SwapRequest
from engine.plan.swap.result import SwapResult

GIB = 2**30
# More sub-models than this are shown by the first and last of them.
MOST_ROWS = 40


@click.command("swap")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for result.json and trace.json.")
def command(file: str, as_json: bool, out: Path | None) -> None:
    """Cut a model into sub-models that swap through one GPU while others load.

    FILE (JSON or YAML, - for standard input): model (a preset, a shape, layers, or a config.json of Hugging
    Face, also its file or folder) or layers (a list, or the file that `meridian profile --swap --json`
    makes), gpu, accumulation, resident, gradients (device or host), workers, global_batch, allreduce_gbps,
    compare.

    --out writes the answer and a trace of one step that Perfetto and chrome://tracing open.
    """
    request = parse(SwapRequest, with_layers(with_model(load_document(file), "model")))
    result = plan_swap(request)
    if out is not None:
        _write(result, out)
    show(as_json, result.as_dict, lambda: lines(result))


def with_layers(document: Any) -> Any:
    """`document` with the layers of the file that `layers` names, as `meridian profile --swap` makes it.

    Raises InputError if the file cannot be read, has no layers, or was measured with other gradients.
    """
    if not isinstance(document, dict) or not isinstance(document.get("layers"), str):
        return document
    source, gradients = document["layers"], document.get("gradients", "host")
    return {**document, "layers": layers_of(load_document(source), gradients=gradients, source=source)}


def lines(result: SwapResult) -> Iterator[str]:
    """The readable answer, line by line."""
    yield (
        f"{len(result.layers)} layers; GPU memory {result.capacity_bytes / GIB:.4g} GiB, of which "
        f"{result.reserved_bytes / GIB:.4g} GiB taken throughout; {result.resident} resident; "
        f"gradients on the {result.gradients}"
    )
    if result.reason:
        yield f"infeasible: {result.reason}"
    if result.step is None:
        return
    yield ""
    yield from _sub_models(result)
    yield ""
    yield from _figures(result)
    if result.compare:
        yield ""
        yield from _compare(result)


def _sub_models(result: SwapResult) -> Iterator[str]:
    head = ["sub-model", "layers", "memory\nGiB", "forward\nms", "backward\nms", "load\nms", ""]
    rows = [
        [
            str(i),
            f"{sub.first}–{sub.last}",
            number(sub.memory_bytes / GIB, 3),
            number(sub.forward_s * 1e3, 2),
            number(sub.backward_s * 1e3, 2),
            number(sub.load_s * 1e3, 2),
            f"{result.layers[sub.first].name} – {result.layers[sub.last].name}",
        ]
        for i, sub in enumerate(result.subs)
    ]
    if len(rows) > MOST_ROWS:
        rows = [*rows[: MOST_ROWS - 1], ["…", "", "", "", "", "", ""], rows[-1]]
    yield from render(head, rows, left=(1, 6))


def _figures(result: SwapResult) -> Iterator[str]:
    step, fleet = result.step, result.fleet
    assert step is not None  # checked before
    yield f"accumulation        {result.accumulation} mini-batches a step; {result.loads_per_step} loads"
    yield f"step                {number(step.step_s, 4)} s, of which {number(step.stall_s, 4)} s waiting"
    yield f"a mini-batch        {number(step.seconds_per_minibatch, 4)} GPU seconds"
    yield f"utilization         {100 * step.utilization:.1f} %"
    if result.kernel_utilization is not None:
        yield f"kernels run         {100 * result.kernel_utilization:.1f} % of a step"
    yield (
        f"host memory         {number(result.host_bytes / GIB, 3)} GiB of parameters, gradients and moments; "
        f"{number((result.edge_bytes or 0) / GIB, 3)} GiB of inputs kept for the backward pass"
    )
    if fleet is None:
        return
    count = sum(worker.count for worker in fleet.workers)
    yield f"workers             {count:,}: {number(fleet.minibatches_per_s, 3)} mini-batches/s"
    if fleet.allreduce_s is not None:
        size = number(fleet.gradient_bytes / 1e9, 3)
        yield f"all-reduce          {number(fleet.allreduce_s, 3)} s of {size} GB"
    if fleet.batch_s is not None:
        yield f"global batch        {number(fleet.batch_s, 3)} s for {fleet.global_batch:,} mini-batches"
    if fleet.update_s is not None:
        yield f"update              {number(fleet.update_s, 3)} s with all-reduce and first load"


def _compare(result: SwapResult) -> Iterator[str]:
    head = ["compared with", "link", "GPU seconds\na mini-batch", "busy\n%", "swap plan is\nfaster by"]
    rows = [
        [
            NAMES[row.policy],
            row.link,
            number(row.seconds_per_minibatch_gpu, 4),
            number(100 * row.utilization, 1),
            f"{row.speedup:.3g} ×",
        ]
        for row in result.compare
    ]
    yield from render(head, rows, left=(0, 1))


def _write(result: SwapResult, out: Path) -> None:
    """Writes the answer and its trace. Raises InputError if the folder cannot be created or written."""
    from engine.simulate.trace import chrome_trace

    write_json(result.as_dict(), folder(out) / "result.json")
    write_json(chrome_trace(result.spans(), unit="s"), out / "trace.json")
