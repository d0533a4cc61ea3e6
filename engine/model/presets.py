"""Models by name.

``gpt-a`` and ``gpt-b`` are the Atlas paper's (§3): L, H = 4K, 4K with 412 million parameters a layer, and
6K, 8K with 1.2 billion. A standard block of 12·H² has only 201 and 805 million, so their MLPs are widened
here until a layer has what the paper prints. (A block of 12·H² and one embedding table of about 50 thousand
tokens together give 407–411 million and 1.22 billion, which may be how the paper counted: with the output
matrix in it, a stage computes with all of them, as here.) They get one layer per pipeline stage ("we limit
the number of layers to fit"), and no vocabulary on top.

What each is from stands beside it in engine/data/models/presets.json.
"""

import json
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from engine.errors import InputError
from engine.inputs import nearest
from engine.model.hugging_face import read_config
from engine.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model by name: its shape, and what that is from; `config` where it is a config.json, else None."""

    shape: Transformer
    source: str
    config: dict[str, Any] | None


def _shape(model: dict[str, Any]) -> Transformer:
    return read_config(model).shape if "model_type" in model else Transformer(**model)


def _known() -> dict[str, Preset]:
    text = files("engine").joinpath("data/models/presets.json").read_text(encoding="utf-8")
    return {
        name: Preset(
            shape=_shape(row["model"]),
            source=row["source"],
            config=row["model"] if "model_type" in row["model"] else None,
        )
        for name, row in json.loads(text).items()
    }


KNOWN = _known()
PRESETS = {name: known.shape for name, known in KNOWN.items()}
# Sized to the pipeline that runs them: one layer a stage.
PER_STAGE = frozenset({"gpt-a", "gpt-b"})


def preset(name: str, *, stages: int = 1) -> Transformer:
    """The model called `name`, for a pipeline of `stages` stages.

    Raises
    ------
    InputError
        Unknown name; the message has the nearest known one.
    """
    if name not in PRESETS:
        raise InputError("model", name, "unknown model, " + nearest(name, PRESETS))
    shape = PRESETS[name]
    return replace(shape, layers=stages) if name in PER_STAGE else shape
