"""A document's model as `model` of a training job, where its blocks are ours."""

from typing import Any

from engine.errors import InputError
from engine.job.model_document import BYTE_VOCABULARY, MOST_PARAMETERS
from engine.model.document import ModelInput, shape_of
from engine.model.hugging_face import HuggingFaceModel
from engine.model.transformer import is_own


def own_model(given: str | ModelInput | HuggingFaceModel, stages: int, otherwise: str) -> dict[str, Any]:
    """The `model` of a job of so many stages; one without a vocabulary gets that of bytes.

    otherwise : what to do if it cannot be trained, said in the error.

    Raises
    ------
    InputError
        An unknown name, blocks of another kind than ours, or too many parameters.
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
    parameters = shape.layers * shape.layer_parameters + shape.embedding_parameters + shape.head_parameters
    if parameters > MOST_PARAMETERS:
        allowed = (
            f"{called} has {parameters:,} parameters, but a training run may have at most "
            f"{MOST_PARAMETERS:,}: {otherwise}"
        )
        raise InputError("model", called, allowed)
    return document
