"""Layers of a model that an installed package gives: embedding, decoder layers and head, by number.

`package:attribute` is a callable. Called with the document's arguments it returns the parts of a model. Each
part is made when it is needed, so that a rank makes its own layers alone, and with a seed of its own, so that
every split of a job starts from the same weights.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from pkgutil import resolve_name
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from engine.errors import InputError
from engine.job.model_document import ModuleModel
from engine.job.module_access import require_open


class ModelParts(Protocol):
    """What the callable returns. Weights are drawn by each part itself, as it is made."""

    def embedding(self) -> nn.Module:
        """Tokens (batch, seq) int64 → (batch, seq, hidden)."""

    def layer(self, number: int) -> nn.Module:
        """Decoder layer `number`, counted from 0: (batch, seq, hidden) → the same."""

    def head(self) -> nn.Module:
        """(batch, seq, hidden) → logits (batch, seq, vocabulary)."""


def drawn(model: ModuleModel, number: int, seed_of: Callable[[int], int]) -> nn.Module:
    """Layer `number` of the model with its first weights: 0 is the embedding, the last one the head.

    Dropout is off: a recomputed pass must repeat the first one. Raises InputError as `parts_of` does, and
    where the package cannot make the layer.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(number))
        return _made(model, number).eval()


def parts_of(model: ModuleModel) -> ModelParts:
    """The parts of the model.

    Raises
    ------
    InputError
        This machine does not import the module, it is not there, or it does not give the parts.
    """
    require_open(model.module)
    return _parts(model.module, json.dumps(model.arguments, sort_keys=True))


def check_parts(model: ModuleModel) -> None:
    """Raise InputError where a part takes or gives another shape than the document says.

    Parts are made on `meta`; one whose code cannot run there is not looked at.
    """
    x: Tensor = torch.zeros(1, model.seq, dtype=torch.int64, device="meta")
    hidden, logits = (1, model.seq, model.hidden), (1, model.seq, model.vocabulary)
    for number, shape in ((0, hidden), (1, hidden), (model.layers + 1, logits)):
        try:
            with torch.device("meta"):
                x = _made(model, number)(x)
        except (NotImplementedError, RuntimeError) as error:
            if "meta" in str(error):
                return
            raise _refused(model.module, f"{_name_of(model, number)} fails: {error}") from None
        if not isinstance(x, Tensor) or tuple(x.shape) != shape:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise _refused(model.module, f"{_name_of(model, number)} must give {shape}, and gives {got}")


def _made(model: ModuleModel, number: int) -> nn.Module:
    parts, name = parts_of(model), _name_of(model, number)
    try:
        if number == 0:
            layer = parts.embedding()
        else:
            layer = parts.layer(number - 1) if number <= model.layers else parts.head()
    except Exception as error:  # whatever the package raises
        raise _refused(model.module, f"{name} cannot be made: {error}") from None
    if not isinstance(layer, nn.Module):
        raise _refused(model.module, f"{name} must be a torch module, and is {type(layer).__name__}")
    return layer


@lru_cache(maxsize=2)
def _parts(module: str, arguments: str) -> Any:
    try:
        make = resolve_name(module)
    except (ImportError, AttributeError) as error:
        raise _refused(module, f"is not installed here: {error}") from None
    try:
        parts = make(**json.loads(arguments))
    except Exception as error:  # whatever the package raises
        raise _refused(module, f"cannot be called with model.arguments: {error}") from None
    missing = [n for n in ("embedding", "layer", "head") if not callable(getattr(parts, n, None))]
    if missing:
        raise _refused(
            module, f"must give an object with the methods embedding, layer and head; has no {missing[0]}"
        )
    return parts


def _name_of(model: ModuleModel, number: int) -> str:
    if number == 0:
        return "embedding()"
    return f"layer({number - 1})" if number <= model.layers else "head()"


def _refused(module: str, why: str) -> InputError:
    return InputError("model.module", module, why)
