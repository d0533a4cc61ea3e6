"""Models by name for swap plans: the presets, and ATOM's eight GPT-3 configurations (Table II)."""

import json
from functools import cache
from importlib.resources import files

from engine.errors import InputError
from engine.inputs import nearest
from engine.model.presets import PRESETS, preset
from engine.model.transformer import Transformer

# GPT-3's vocabulary and ATOM's sequence length (Table II).
VOCABULARY = 50_257
SEQUENCE = 2_048


@cache
def gpt3() -> dict[str, Transformer]:
    """ATOM's configurations by name.

    The 24 heads of XL do not divide its width of 2,048: it gets the next lower number that does, 16.
    """
    text = files("engine").joinpath("data/atom/gpt3.json").read_text(encoding="utf-8")
    return {name: _shape(**row) for name, row in json.loads(text).items()}


def known_models() -> list[str]:
    """Every name that :func:`named` knows."""
    return list(dict.fromkeys([*PRESETS, *gpt3()]))


def named(name: str) -> Transformer:
    """The model called `name`. Raises InputError, with the nearest known name, if there is none."""
    if name in PRESETS:
        return preset(name)
    if name in gpt3():
        return gpt3()[name]
    raise InputError("model", name, "unknown model, " + nearest(name, known_models()))


def _shape(layers: int, hidden: int, heads: int) -> Transformer:
    while hidden % heads:
        heads -= 1
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=4 * hidden,
        vocab=VOCABULARY,
        seq=SEQUENCE,
    )
