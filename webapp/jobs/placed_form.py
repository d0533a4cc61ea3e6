"""The launch form of a placement: what is trained on its groups and pipelines."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms

from engine.errors import InputError
from engine.inputs import parse
from engine.job.model_document import ConfigModel, TrainModel
from webapp.common.uploads import given_document
from webapp.computations.models import Computation
from webapp.jobs.forms import JobForm
from webapp.placement.placed import PlacedJob, placed_job
from webapp.planning.data_fields import of_job
from webapp.planning.forms import of_plan
from webapp.planning.model_fields import MOST_CONFIG_BYTES
from webapp.planning.planned_model import with_files

SHAPE = ("layers", "hidden", "heads")  # of a GPT
PLAIN = ("microbatches", "micro_batch", "policy", "steps", "lr", "seed")
TIMES = ("forward_ms", "backward_ms", "recompute_ms")
# Where neither a plan nor anybody has said something else.
FIRST: dict[str, Any] = {
    "hidden": 64,
    "heads": 4,
    "seq": 64,
    "microbatches": 4,
    "micro_batch": 2,
    "policy": "1f1b",
    "forward_ms": 20,
    "backward_ms": 40,
    "recompute_ms": 0,
    "steps": 1000,
    "lr": 0.003,
    "seed": 0,
}


class PlacedForm(JobForm):
    """A run whose ranks compute where a placement puts them; `placed` is what a valid form asks for.

    A placement says no model and no times: the form asks for them besides.
    """

    config = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false"}),
        required=False,
        label="Config",
        help_text="The text of a config.json of Hugging Face. Leave empty to train a GPT of the shape below.",
    )

    layers = of_job("model.layers", required=False)
    hidden = of_job("model.hidden", required=False)
    heads = of_job("model.heads", required=False)
    seq = of_job("model.seq", label="Sequence length, tokens")
    forward_ms = of_plan(
        "job.forward_ms",
        label="Forward time, ms",
        required=True,
        help_text="Of one microbatch on one stage. Only emulated GPUs use these times.",
    )
    backward_ms = of_plan("job.backward_ms", label="Backward time, ms", required=True)
    recompute_ms = of_plan("job.recompute_ms", label="Recompute time, ms")
    activation_bytes = of_job(
        "cell.activation_bytes",
        label="Message size, bytes",
        help_text="Activation or gradient of one microbatch between emulated GPUs. Leave empty to compute "
        "it from the model.",
    )

    layout = [
        JobForm.layout[0],
        ("Model", "", ["seq", "config", *SHAPE]),
        JobForm.layout[1],
        ("Times", "", [*TIMES, "activation_bytes"]),
        *JobForm.layout[2:],
    ]

    FIELD_OF: ClassVar = {**JobForm.FIELD_OF, **{name.removesuffix("_ms"): name for name in TIMES}}

    def __init__(
        self, data: Any = None, *, placement: Computation, initial: dict[str, Any] | None = None
    ) -> None:
        """Raises InputError where the placement cannot be run at all (`placed_job`)."""
        values = {**FIRST, "layers": placement.request["grid"][0], **(initial or {})}
        if isinstance(values.get("config"), dict):  # of the plan that was placed
            values["config"] = json.dumps(values["config"], indent=1)
        placed = placed_job(placement, _training(values))
        super().__init__(
            data,
            document=placed.document,
            team=placement.team,
            gpu_of_rank=placed.gpu_of_rank,
            initial={"name": placement.name, **values},
        )
        self.placement = placement

    @property
    def placed(self) -> PlacedJob:
        """The job of a valid form, and where its ranks compute."""
        return PlacedJob(document=self.document, gpu_of_rank=[list(gpu) for gpu in self.gpu_of_rank])

    def absent(self, model: TrainModel | ConfigModel) -> tuple[str, ...]:
        """None: the form decides which kind of model it is."""
        return ()

    def _document(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        training = _training(cleaned)
        with_files(training["model"], cleaned)
        self.old = placed_job(self.placement, training).document
        return super()._document(cleaned)


def _training(values: dict[str, Any]) -> dict[str, Any]:
    """What `placed_job` reads, of the form's values."""
    training = {name: values[name] for name in PLAIN}
    training["model"] = _model(values)
    training["times_ms"] = {
        name.removesuffix("_ms"): value for name in TIMES if (value := values[name]) is not None
    }
    if values.get("activation_bytes"):
        training["activation_bytes"] = values["activation_bytes"]
    return training


def _model(values: Mapping[str, Any]) -> dict[str, Any]:
    """The `model` of a job: that of the config, or a GPT of the shape."""
    if values.get("config"):
        if values.get("vocab"):
            raise InputError("vocab", values["vocab"], "must be left empty: the config has its own")
        return _configured(values["config"], values["seq"])
    for name in SHAPE:
        if values.get(name) is None:
            raise InputError(name, None, "enter a number, or a config above")
    shape = {name: values[name] for name in (*SHAPE, "seq")}
    return shape | ({"vocab": values["vocab"]} if values.get("vocab") else {})


def _configured(text: str, seq: int) -> dict[str, Any]:
    """The `model` of a config's text. Raises InputError at `config` where it is none, or is not trained."""
    try:
        model = {
            "config": given_document(None, text, field="config", most_bytes=MOST_CONFIG_BYTES),
            "seq": seq,
        }
        parse(ConfigModel, model)
    except InputError as error:
        raise InputError("config", error.value, str(error)) from None
    return model
