"""What a launch trains, in words: the planned model, or a stand-in for it."""

from collections.abc import Mapping
from typing import Any

from engine.errors import InputError
from engine.job.changed import value_at
from engine.job.model_document import ConfigModel, TrainModel, read_model
from webapp.planning.planned_model import model_to_train

UNKNOWN = "a model that this version does not know"


def trained_words(document: Mapping[str, Any], planned: Mapping[str, Any] | None) -> str:
    """ "the planned model of N parameters", or "a stand-in of N parameters with the planned times".

    Parameters
    ----------
    document : of `meridian train`, in sections.
    planned : the document of the plan that it came from; None where there was none.
    """
    model = _read(document["model"])
    if model is None:
        return UNKNOWN
    if not planned:
        return f"a model of {_size(model)}"
    if _as_planned(model, planned["job"].get("model"), document["cell"]["stages"]):
        return f"the planned model of {_size(model)}"
    times = "the planned times" if value_at(document, "device.times_ms") else "its own times"
    return f"a stand-in of {_size(model)} with {times}"


def trained_in_short(model: Mapping[str, Any], planned: Any, stages: int, *, of_plan: bool) -> str:
    """The same for a row of a list, with the number of parameters: "planned, 8.03 billion".

    Parameters
    ----------
    model, planned : of the job's document, and of the plan's; None where the plan has times alone.
    of_plan : whether the job came from a plan.
    """
    trained = _read(model)
    if trained is None:
        return "not known"
    if not of_plan:
        return _count(trained.shape.parameters)
    kind = "planned" if _as_planned(trained, planned, stages) else "stand-in"
    return f"{kind}, {_count(trained.shape.parameters)}"


def _read(model: Mapping[str, Any]) -> TrainModel | ConfigModel | None:
    try:
        return read_model(model, at="model")
    except InputError:
        return None


def _as_planned(trained: TrainModel | ConfigModel, planned: Any, stages: int) -> bool:
    if planned is None:
        return False
    try:
        planned_model = read_model(model_to_train(planned, stages))
    except InputError:
        return False  # the planned one cannot be trained
    return _itself(trained) == _itself(planned_model)


def _itself(model: TrainModel | ConfigModel) -> Any:
    """The model, whatever tokens it reads and weights it begins with."""
    return (model.config, model.seq) if isinstance(model, ConfigModel) else model.shape


def _size(model: TrainModel | ConfigModel) -> str:
    return f"{_count(model.shape.parameters)} parameters"


def _count(parameters: int) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if parameters >= size:
            return f"{parameters / size:.3g} {word}"
    return f"{parameters:,}"
