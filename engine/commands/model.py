"""`meridian model FILE`: parameters, FLOPs and bytes of a model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from engine.commands.model_files import read_model
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.errors import InputError
from engine.inputs import nearest, parse
from engine.model.description import DTYPE_BYTES, ModelFigures, figures_of
from engine.model.hugging_face import read_config
from engine.model.presets import KNOWN
from engine.plan.network.request import ShapeInput


@click.command("model")
@click.argument("file")
@click.option(
    "--dtype",
    type=click.Choice(list(DTYPE_BYTES)),
    default="bf16",
    help="Of weights and caches.",
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(file: str, dtype: str, as_json: bool) -> None:
    """Count a model's parameters, FLOPs and bytes.

    FILE is a config.json of Hugging Face, a folder that holds one, a shape of ours in JSON or YAML (layers,
    hidden, heads, kv_heads, ffn, vocab, seq, family, moe; - for standard input), or the name of a preset.
    """
    figures = _figures(file, dtype)
    show(as_json, figures.as_dict, lambda: _lines(figures))


def _figures(file: str, dtype: str) -> ModelFigures:
    if file != "-" and not Path(file).exists():
        if file not in KNOWN:
            raise InputError("FILE", file, "no such file, nor a preset: " + nearest(file, KNOWN))
        return figures_of(KNOWN[file].shape, dtype, f"preset {file}: {KNOWN[file].source}")
    document: Any = read_model(file)
    if isinstance(document, dict) and "model_type" in document:
        config = read_config(document)
        return figures_of(config.shape, dtype, file, config.assumed)
    return figures_of(parse(ShapeInput, document).shape(), dtype, file)


def _lines(figures: ModelFigures) -> Iterator[str]:
    rows: list[tuple[str, str | None]] = [
        ("parameters", number(figures.parameters, 0)),
        ("family", figures.family),
        ("layers", number(figures.layers, 0)),
        ("hidden size", number(figures.hidden, 0)),
        ("heads, of keys and values", f"{figures.heads}, {figures.kv_heads}; {figures.head_dim} wide"),
        ("inner width of the MLP", number(figures.ffn, 0)),
        (
            "vocabulary",
            f"{figures.vocab:,}{', output tied to the embedding' if figures.tied_embeddings else ''}",
        ),
        ("longest sequence", f"{figures.seq:,} tokens"),
        (f"weights in {figures.dtype}", f"{number(figures.weight_bytes / 1e9)} GB"),
        (f"KV cache in {figures.dtype}", f"{figures.kv_bytes_per_token:,} bytes a token"),
        (
            "forward pass",
            f"{number(figures.forward_flops_per_token / 1e9)} GFLOP a token, without attention to others",
        ),
    ]
    if figures.experts is not None:
        rows[1:1] = [("… active per token", number(figures.active_parameters, 0))]
        rows += [("experts", f"{figures.experts}, {figures.experts_per_token} for a token")]
    if figures.window is not None:
        rows += [("attention window", f"{figures.window:,} tokens in {figures.windowed_layers} layers")]
    yield from render(("", figures.source), rows, left=(0, 1))
    if figures.assumed:
        yield ""
        taken = ", ".join(f"{name} = {json.dumps(value)}" for name, value in figures.assumed.items())
        yield f"Not in the config, as transformers has it: {taken}"
