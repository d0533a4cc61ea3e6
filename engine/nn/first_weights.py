"""The weights that a model of transformers begins with, from a folder: each layer reads its own alone."""

import re
from functools import lru_cache
from pathlib import Path

import torch

from engine.errors import InputError
from engine.nn.hugging_face import Decoder, Slice
from engine.nn.saved_weights import names_in, read_tensors

FIELD = "model.init"
MOST_NAMES = 5  # of surplus tensors in an error


@torch.no_grad()
def read_layer(decoder: Decoder, number: int, folder: str) -> Slice:
    """Layer `number` with the weights in `folder`, in fp32.

    Raises
    ------
    InputError
        A tensor is missing, damaged, of another shape, or not of this model.
    """
    prefix = _left_out(decoder, folder)
    layer = decoder.on_meta(number).to_empty(device="cpu")
    for parameter in layer.parameters():
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # only buffers get values
    layer.apply(decoder.model._init_weights)
    parameters = {
        decoder.saved_name(layer, name).removeprefix(prefix): parameter
        for name, parameter in layer.named_parameters()
    }
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    for name, tensor in read_tensors(Path(folder), shapes, field=FIELD):
        parameters[name].copy_(tensor)
    return layer


@lru_cache(maxsize=2)
def _left_out(decoder: Decoder, folder: str) -> str:
    """What names in the folder lack in front: of a base model that was saved alone, its name. Else nothing.

    Raises InputError for a tensor that is not of the model.
    """
    names = names_in(Path(folder), field=FIELD)
    base = f"{decoder.model.base_model_prefix}."
    prefix = "" if any(name.startswith(base) for name in names) else base
    known = decoder.saved_names
    ignored = decoder.model._keys_to_ignore_on_load_unexpected or ()
    surplus = sorted(
        name
        for name in names
        if not {name, prefix + name} & known and not any(re.search(pattern, name) for pattern in ignored)
    )
    if surplus:
        more = f" and {len(surplus) - MOST_NAMES} more" if len(surplus) > MOST_NAMES else ""
        allowed = (
            f"only weights of {decoder.model.config.model_type}, not {', '.join(surplus[:MOST_NAMES])}{more}"
        )
        raise InputError(FIELD, folder, allowed)
    return prefix
