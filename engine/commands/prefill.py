"""`meridian prefill replay FILE`: a request trace in the bubbles of training."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from engine.commands.model_files import with_model
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.documents import load_document
from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.prefill.replay import Quantiles, ReplayResult, replay
from engine.prefill.request import ReplayRequest


@click.group("prefill")
def command() -> None:
    """Prefill prompts in the bubbles of training."""


@command.command("replay")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option(
    "--placements",
    type=click.Path(path_type=Path),
    help="Write the GPUs and times of each accepted request to this file, as JSON lines.",
)
def replay_command(file: str, as_json: bool, placements: Path | None) -> None:
    """Replay a trace of requests against the bubbles of a schedule.

    FILE (JSON or YAML, - for standard input): bubbles {scenario, slot_ms} or {timeline}, cells, phase,
    warm_iterations, profile {points}, {a_ms, b_ms, c_ms} or {model, gpu, tensor_parallel}, pp_degree,
    lan_gbps, kv_bytes_per_token, hop_ms, activation_bytes_per_token, trace (a file, azure-code or
    mooncake-conversation), load, requests, too_long and controller {guard_ms, queue, reserve_ms,
    chunk_tokens, order, ttft_slo_ms, kv_budget_gb}.
    The model is a name, a shape, or a config.json of Hugging Face or its file.
    """
    from engine.commands.compiled import announce_compilation, announce_prefill_compilation

    request = parse(ReplayRequest, with_model(load_document(file), "profile", "model"))
    announce_compilation()
    announce_prefill_compilation()
    with _lines_to(placements) as sink:
        result = replay(request, sink)
    if isinstance(result, Infeasible):
        refusal = {"feasible": False, "reason": result.reason}
        show(as_json, lambda: refusal, lambda: [f"infeasible: {refusal['reason']}"])
    else:
        show(as_json, result.as_dict, lambda: lines(result))


@command.command("model")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--steps",
    type=click.IntRange(0, 100_000),
    help="Training steps; 0 leaves the weights random.  [default: 400]",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
def model_command(directory: Path, steps: int | None, seed: int) -> None:
    """Write a tiny byte-level Llama into DIRECTORY, for `prefill.checkpoint` of a demo job.

    It is trained for some seconds on the text of Python's standard library.
    """
    import torch

    from engine.run.tiny import STEPS, write_tiny

    torch.set_num_threads(1)  # so small a model is slower on several

    def report(done: int, loss: float) -> None:
        click.echo(f"step {done}: loss {loss:.2f}", err=True)

    tiny = write_tiny(directory, steps=STEPS if steps is None else steps, seed=seed, report=report)
    how = "random" if tiny.loss is None else f"loss {tiny.loss:.2f} nats a byte"
    click.echo(f"{tiny.out}: {tiny.parameters:,} parameters, {how}")


@contextmanager
def _lines_to(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """A function that writes one line of `path` as JSON; None without a path."""
    if path is None:
        yield None
        return
    try:
        with path.open("w", encoding="utf-8") as file:
            yield lambda line: print(json.dumps(line, allow_nan=False), file=file)
    except OSError as error:
        raise InputError("--placements", str(path), f"cannot be written ({error.strerror})") from None


def lines(result: ReplayResult) -> Iterator[str]:
    """The readable answer, line by line."""
    request = result.request
    cells = f"{request.cells} cells {request.phase} of phase" if request.cells > 1 else "one cell"
    yield (
        f"{result.gpus:,} GPUs in {cells}, iterations of {number(result.iteration_ms, 1)} ms; prefill on "
        f"{request.pp_degree} GPU{'s' if request.pp_degree > 1 else ''} a request"
    )
    yield f"window              {number(result.window_ms / 1e3, 1)} s"
    share = f"{100 * result.offered_share:.1f} % of the bubbles" if result.offered_share is not None else "–"
    yield f"load                {request.load:g} × the trace: asks for {share}"
    part = 100 * result.accepted / result.requests
    yield f"accepted            {result.accepted:,} of {result.requests:,} requests ({part:.1f} %)"
    refused = ", ".join(f"{count:,} {reason}" for reason, count in result.refused.items() if count)
    yield f"refused             {refused or 'none'}"
    before, after = 100 * result.utilization_before, 100 * result.utilization_after
    yield f"utilization         {before:.1f} % without prefill, {after:.1f} % with"
    yield f"training slow-down  {100 * result.training_slowdown:.3g} %"
    yield f"past the objective  {result.ttft_missed:,}"
    yield ""
    rows = [
        _row("queueing, ms", result.queue_ms),
        _row("time to KV cache, ms", result.ttft_ms),
        _row("search, µs of CPU", result.search_us),
    ]
    yield from render(["", "p50", "p95", "p99", "max"], rows, left=(0,))


def _row(name: str, figures: Quantiles) -> tuple[str | None, ...]:
    return (name, *(number(value, 1) for value in (figures.p50, figures.p95, figures.p99, figures.max)))
