"""What a launch trains, in words: the planned model, or a stand-in for it."""

from collections.abc import Mapping
from typing import Any

from engine.errors import InputError
from engine.job.changed import value_at
from engine.job.model_document import read_model
from webapp.planning.planned_model import model_to_train


def trained_words(document: Mapping[str, Any], planned: Mapping[str, Any] | None) -> str:
    """ "the planned model", or "a stand-in of 215,168 parameters with the planned times".

    Parameters
    ----------
    document : of `meridian train`, in sections.
    planned : the document of the plan that it came from; None where there was none.
    """
    try:
        model = read_model(document["model"], at="model")
    except InputError:
        return "a model that this version does not know"
    size = f"{_count(model.parameters)} parameters"
    if not planned:
        return f"a model of {size}"
    if _as_planned(document, planned):
        return "the planned model"
    times = "the planned times" if value_at(document, "device.times_ms") else "its own times"
    return f"a stand-in of {size} with {times}"


def _as_planned(document: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    model = planned["job"].get("model")
    if model is None:
        return False
    try:
        wanted = model_to_train(model, document["cell"]["stages"])
        return read_model(document["model"]) == read_model(wanted)
    except InputError:
        return False  # the planned one cannot be trained


def _count(parameters: int) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if parameters >= size:
            return f"{parameters / size:.3g} {word}"
    return f"{parameters:,}"
