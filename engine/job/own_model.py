"""A document's model as `model` of a training job."""

from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.job.model_document import BYTE_VOCABULARY, ConfigModel
from engine.model.document import ModelInput, shape_of
from engine.model.hugging_face import HuggingFaceModel
from engine.model.transformer import is_own


def own_model(given: str | ModelInput | HuggingFaceModel, stages: int, otherwise: str) -> dict[str, Any]:
    """The `model` of a job of so many stages; one without a vocabulary gets that of bytes.

    otherwise : what to do if it cannot be trained, said in the error.

    Raises
    ------
    InputError
        An unknown name, or blocks of another kind than ours.
    """
    called, shape = given if isinstance(given, str) else "the model", shape_of(given, stages)
    if not is_own(shape):
        allowed = f"a training run has blocks of gpt and llama alone, and {shape.family} differs: {otherwise}"
        raise InputError("model", called, allowed)
    document: dict[str, Any] = {
        "family": shape.family,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "ffn": shape.ffn,
        "seq": shape.seq,
    }
    if shape.kv_heads != shape.heads:
        document["kv_heads"] = shape.kv_heads
    if shape.vocab > BYTE_VOCABULARY:
        document["vocab"] = shape.vocab
    return document


def trained_model(given: str | ModelInput | HuggingFaceModel, stages: int, otherwise: str) -> dict[str, Any]:
    """The `model` of a job that trains the given model itself: a config.json stays what it is.

    Parameters and errors as in `own_model`; of a config, InputError where its layers are not trained
    (experts, latent attention, fewer tokens than bytes).
    """
    if not isinstance(given, HuggingFaceModel):
        return own_model(given, stages, otherwise)
    config = {name: value for name, value in given.root.items() if name != "seq"}
    document = {"config": config, "seq": given.read.shape.seq}
    try:
        parse(ConfigModel, document)
    except InputError as error:
        allowed = f"a training run refuses {error.field}, {error.allowed}: {otherwise}"
        raise InputError("model", config["model_type"], allowed) from None
    return document
