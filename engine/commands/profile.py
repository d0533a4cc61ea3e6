"""`meridian profile FILE`: how long each op of each pipeline stage, or prefill, takes on this machine."""

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from engine.commands.layer_tables import with_tables
from engine.commands.model_files import with_model
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.documents import load_document
from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.model.profiled_stages import ProfiledStages

if TYPE_CHECKING:  # `meridian --help` must not pay for torch: what measures is imported by what it is for
    from engine.plan.swap.layers import Layer
    from engine.serve.measuring import PrefillProfile
    from engine.train.profiling import StageTimes


@click.command("profile")
@click.argument("file")
@click.option("--prefill", is_flag=True, help="Measure prefill by prompt length and fit the latency model.")
@click.option("--swap", is_flag=True, help="Measure layers, as `meridian swap` takes them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(file: str, prefill: bool, swap: bool, as_json: bool) -> None:
    """Measure the stages of a model on this machine, one after another.

    FILE (JSON or YAML, - for standard input): model (layers, hidden, heads, seq …, a preset, or the
    config.json of a dense decoder of Hugging Face or its file), stages, micro_batch, device cpu|cuda, dtype,
    recompute, split, repeats, seed.

    FILE may instead have layer_profiles (table or file), model, gpu, micro_batch, tp, stages and
    layers_per_stage: then nothing is measured, and each stage has the sums over its layers.

    The output of --json can be used as `times_ms` in the file of `meridian train`.

    With --swap, FILE has model, micro_batch, device, dtype, gradients (host or device), repeats, seed. The
    file that --json makes can be used as `layers` in the file of `meridian swap`.

    With --prefill, FILE has: checkpoint (folder of a Hugging Face Llama), weights disk|random, tokens
    (lengths of prompts), device cpu|cuda, dtype, repeats, threads, seed. The `points` that --json prints, or
    its `latency`, can be used in `profile` of the file of `meridian prefill replay`.
    """
    if prefill and swap:
        raise InputError("--swap", None, "must be left out with --prefill: measure one after the other")
    if prefill:
        _prefill(file, as_json)
        return
    if swap:
        _swap(file, as_json)
        return
    document = load_document(file)
    if isinstance(document, dict) and "layer_profiles" in document:
        _of_layers(parse(ProfiledStages, with_tables(document, ("layer_profiles",))), as_json)
        return
    from engine.train.profiling import ProfileRequest, profile_stage

    request = parse(ProfileRequest, with_model(with_model(document, "model"), "model", "config"))
    with click.progressbar(range(request.stages), label="stages", file=sys.stderr, hidden=as_json) as stages:
        rows = [profile_stage(request, stage) for stage in stages]
    answer = {
        "device": request.device,
        "dtype": request.dtype,
        "micro_batch": request.micro_batch,
        "model": request.model.model_dump(exclude_none=True),
        "repeats": request.repeats,
        "rows": [row.as_dict() for row in rows],
    }
    show(as_json, lambda: answer, lambda: _lines(rows))


def _of_layers(stages: ProfiledStages, as_json: bool) -> None:
    """The times of each stage by a profile of its layers."""
    placed = zip(stages.gpu_of_stage, stages.tp_of_stage, stages.layers_of_stage, stages.seconds, strict=True)
    rows: list[dict[str, Any]] = [
        {
            "stage": i,
            "gpu": gpu,
            "tp": tp,
            "layers": len(layers),
            "forward_ms": 1e3 * seconds.forward_s,
            "backward_ms": 1e3 * seconds.backward_s,
            "update_ms": 1e3 * seconds.update_s,
        }
        for i, (gpu, tp, layers, seconds) in enumerate(placed)
    ]
    device = ", ".join(dict.fromkeys(stages.gpu_of_stage))
    answer = {"device": device, "micro_batch": stages.micro_batch, "model": stages.model, "rows": rows}
    head = [name.replace("_", "\n") for name in rows[0]]
    cells = [
        [number(value, 2) if name.endswith("_ms") else str(value) for name, value in row.items()]
        for row in rows
    ]
    show(as_json, lambda: answer, lambda: render(head, cells, left=(1,)))


def _swap(file: str, as_json: bool) -> None:
    """Memory and times of each layer that a swap run can cut between."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler says on stderr whenever it begins
    from engine.train.swap.profiling import SwapProfileRequest, profile_layers

    request = parse(SwapProfileRequest, with_model(load_document(file), "model"))
    count = request.model.layers + 2
    with click.progressbar(length=count, label="layers", file=sys.stderr, hidden=as_json) as bar:
        profile = profile_layers(request, report=lambda _: bar.update(1))
    document = request.model_dump(include={"device", "dtype", "micro_batch", "gradients", "repeats"}) | {
        "model": request.model.model_dump(exclude_none=True)
    }
    rate = f"host to device: {number(profile.load_bytes_per_s / 1e9, 2)} GB/s"
    show(as_json, lambda: document | profile.as_dict(), lambda: [*_swap_lines(profile.layers), "", rate])


def _swap_lines(layers: "tuple[Layer, ...]") -> list[str]:
    head = ["layer", "memory\nMB", "load\nms", "forward\nms", "backward\nms", "parameters\nMB"]
    cells = [
        [
            layer.name,
            number(layer.memory_bytes / 1e6, 3),
            *(number(1e3 * seconds, 3) for seconds in (layer.load_s, layer.forward_s, layer.backward_s)),
            number(layer.parameter_bytes / 1e6, 3),
        ]
        for layer in layers
    ]
    return render(head, cells, left=(0,))


def _prefill(file: str, as_json: bool) -> None:
    from engine.serve.measuring import PrefillProfileRequest, profile_prefill, rounds

    request = parse(PrefillProfileRequest, load_document(file))
    with click.progressbar(length=rounds(request), label="rounds", file=sys.stderr, hidden=as_json) as bar:
        profile = profile_prefill(request, report=lambda _: bar.update(1))
    document = request.model_dump(exclude={"tokens"})
    show(as_json, lambda: document | profile.as_dict(), lambda: _prefill_lines(profile))


def _prefill_lines(profile: "PrefillProfile") -> list[str]:
    """Of each length the times and what the fitted model says; below, the model and its errors."""
    measured = [[f"{row.tokens:,}", number(row.ms, 2), number(row.p95_ms, 2)] for row in profile.rows]
    model = profile.fitted
    if isinstance(model, Infeasible):
        return [*render(["tokens", "prefill\nms", "p95\nms"], measured), "", f"no model: {model.reason}"]
    latency, left_out = model
    cells = [
        [*row, number(latency.ms(tokens), 2)]
        for row, (tokens, _) in zip(measured, profile.points, strict=True)
    ]
    lines = render(["tokens", "prefill\nms", "p95\nms", "fitted\nms"], cells)
    fitted = f"t = {latency.a_ms:.4g} + {latency.b_ms:.4g}·s + {latency.c_ms:.4g}·s² ms for s tokens"
    errors = f"mean {100 * left_out.mean:.1f} %, worst {100 * left_out.worst:.1f} %"
    return [*lines, "", fitted, f"on {left_out.points} lengths not used for the fit: {errors}"]


def _lines(rows: "list[StageTimes]") -> list[str]:
    """Of each kind of op the median, and next to it the 95th percentile."""
    from engine.train.profiling import NAMES

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
