"""What a training job takes over from a plan of a model: times, limits, messages and the model itself."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.job.own_model import trained_model
from engine.job.sections.device import BYTES_OF_DTYPE
from engine.model.document import ModelInput
from engine.model.hugging_face import HuggingFaceModel
from engine.plan.cell import placed_job, scenario_of
from engine.plan.request import PlanRequest
from webapp.planning.plan_cell import engine_option

DTYPE_OF_BYTES = {width: name for name, width in BYTES_OF_DTYPE.items()}
STAND_IN = "train a stand-in with its times (Trained model in the plan form)"


def planned_model(
    request: dict[str, Any], option: dict[str, Any], training: dict[str, Any]
) -> dict[str, Any]:
    """Fields of `meridian train` for an option of a plan whose job has a `model`.

    Without a `model` in `training` the planned one is trained, in numbers as wide as planned; else that one,
    with the planned op times and messages of the planned size where GPUs are emulated.

    Raises
    ------
    InputError
        A training run cannot do what the option asks for: tensor parallelism on emulated GPUs, or a model of
        its kind.
    """
    tp = option.get("tp") or 1
    if tp > 1 and training.get("device") == "emulated":
        allowed = "a stage is one emulated GPU: plan with 1, or for nodes that compute (CPU or CUDA)"
        raise InputError("tp", tp, allowed)
    plan_request = _parsed(json.dumps(request, sort_keys=True))
    planned = engine_option(option)
    scenario = scenario_of(plan_request, planned)
    fields: dict[str, Any] = {
        name: limit
        for name, limit in (("memory_limit", scenario.memory_limit), ("full_limit", scenario.full_limit))
        if limit is not None
    }
    if tp > 1:
        fields["tp"] = tp
    recomputes = bool(_most(scenario.times.recompute))
    if recomputes:
        fields["recompute"] = True
    _, job = placed_job(plan_request, planned)
    assert plan_request.job.model is not None  # the caller's plan has one
    if training.get("device") == "emulated":
        fields["times_ms"] = {
            "forward": scenario.times.forward,
            "backward": scenario.times.backward,
            "recompute": scenario.times.recompute,
        }
        if "model" in training:
            fields["activation_bytes"] = int(job.activation_bytes or 0)
    if "model" in training:
        return fields
    if plan_request.job.layers_per_stage != "even" and planned.layers_per_stage:
        fields["layers_per_stage"] = list(planned.layers_per_stage)
    return fields | {
        "model": trained_model(plan_request.job.model, job.partitions, STAND_IN),
        "micro_batch": job.layout.micro_batch,
        "dtype": _dtype(plan_request.job.dtype_bytes),
    }


@lru_cache(maxsize=8)  # each option of a plan's page asks
def _parsed(document: str) -> PlanRequest:
    return parse(PlanRequest, json.loads(document))


def model_to_train(model: str | Mapping[str, Any], stages: int) -> dict[str, Any]:
    """The `model` of a plan's job, a preset or a shape, as `model` of a training job.

    Raises
    ------
    InputError
        A training run cannot train it: it has experts, say.
    """
    if isinstance(model, str):
        return trained_model(model, stages, STAND_IN)
    kind = HuggingFaceModel if "model_type" in model else ModelInput
    return trained_model(kind.model_validate(dict(model)), stages, STAND_IN)


def with_files(model: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    """The `model` of a training job with the tokenizer and the weights (`init`) that `files` names, if any.

    Raises
    ------
    InputError
        The model has no vocabulary for a tokenizer, or is none that begins with given weights.
    """
    given = {name: files[name] for name in ("tokenizer", "init") if files.get(name)}
    if "init" in given and "config" not in model:
        allowed = "must be left empty: only a model from a config.json can begin with given weights"
        raise InputError("init", given["init"], allowed)
    if "tokenizer" in given and not {"config", "vocab"} & model.keys():
        allowed = "must be left empty, or the model needs a vocabulary: without one a token is a byte"
        raise InputError("tokenizer", given["tokenizer"], allowed)
    return {**model, **given}


def _dtype(width: float) -> str:
    if width not in DTYPE_OF_BYTES:
        allowed = (
            f"the plan counts {width:g} bytes per number, but a training run has {sorted(DTYPE_OF_BYTES)}"
        )
        raise InputError("dtype_bytes", width, allowed)
    return DTYPE_OF_BYTES[int(width)]


def _most(times: float | list[float]) -> float:
    return max(times) if isinstance(times, list) else times
