"""Models as Hugging Face describes them: a config.json becomes a shape.

A new family is one file in engine/model/families: `MODEL_TYPES`, and `shape`, which reads their configs.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any

from pydantic import ConfigDict, RootModel, model_validator

from engine.errors import InputError
from engine.inputs import FORGETFUL, nearest
from engine.model import families
from engine.model.families.config import LARGEST, Config
from engine.model.transformer import Transformer

_FILES = (
    import_module(f"{families.__name__}.{each.name}") for each in pkgutil.iter_modules(families.__path__)
)
FAMILIES = {model_type: file.shape for file in _FILES for model_type in getattr(file, "MODEL_TYPES", ())}
NESTED = "text_config"  # of a model that sees images as well


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """A config's shape, and what it left to transformers' defaults, by field."""

    shape: Transformer
    assumed: Mapping[str, Any]


def read_config(values: Mapping[str, Any]) -> ReadConfig:
    """The shape that a config.json describes; `seq`, a field of ours, is the length of sequences.

    Without it sequences are as long as the model's positions allow.

    Raises
    ------
    InputError
        An unknown `model_type`, a field that is missing or wrong, or one that is not known and not null.
    """
    model_type = values.get("model_type")
    if NESTED in values:
        raise InputError(NESTED, "given", f"the object in {NESTED} alone: images are not counted")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise InputError(
            "model_type", model_type, "unknown model_type, " + nearest(str(model_type), FAMILIES)
        )
    config = Config(values)
    shape = FAMILIES[model_type](config)
    seq = config.count("seq", default=shape.seq, most=LARGEST)
    config.assumed.pop("seq", None)
    config.end()
    if shape.has.learned_positions and seq > shape.seq:
        raise InputError("seq", seq, f"at most the model's {shape.seq:,} positions")
    return ReadConfig(shape=replace(shape, seq=seq), assumed=config.assumed)


class HuggingFaceModel(RootModel[dict[str, Any]]):
    """A config.json inside a document."""

    model_config = ConfigDict(frozen=True, **FORGETFUL)

    @model_validator(mode="after")
    def _readable(self) -> "HuggingFaceModel":
        _ = self.read
        return self

    @cached_property
    def read(self) -> ReadConfig:
        """What it describes."""
        return read_config(self.root)
