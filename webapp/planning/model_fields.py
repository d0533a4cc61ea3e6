"""The model of a form: a preset, or a config.json of Hugging Face, uploaded or pasted."""

import json
from typing import Any

from django import forms
from django.urls import reverse_lazy

from engine.errors import InputError
from engine.inputs import parse
from engine.model.description import ModelFigures, figures_of
from engine.model.document import ModelInput, shape_of
from engine.model.hugging_face import read_config
from engine.model.presets import PRESETS, preset
from engine.model.transformer import Transformer
from engine.plan.request import JobInput
from engine.plan.stages import stages_of
from webapp.common.document_fields import document_field
from webapp.common.uploads import given_document

CONFIG = "config"  # the choice that is no preset
MOST_CONFIG_BYTES = 128 << 10
DTYPE = "bf16"  # in which the form says how large weights and caches are


CONFIG_CHOICE = (CONFIG, "A config.json of Hugging Face")
FIELDS = ["model", "config_file", "config", "model_seq"]


class ModelFields(forms.Form):
    """Fields `model`, `config_file`, `config` and `model_seq`; a valid form has what they say in `model`.

    previews : whether the page says what the model is while it is chosen; needs the right to plan.
    """

    previews = True

    model = forms.ChoiceField(
        label="Model",
        choices=[*((name, name) for name in PRESETS), CONFIG_CHOICE],
        initial=next(iter(PRESETS)),
        required=False,
        help_text="The times of a stage follow from the model and the GPU type.",
    )
    config_file = forms.FileField(required=False, label="config.json")
    config = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false"}),
        required=False,
        label="Config",
        help_text="The text of a config.json. A file that is chosen replaces it.",
    )
    model_seq = document_field(
        ModelInput,
        "seq",
        label="Sequence length, tokens",
        required=False,
        help_text="Leave empty for the longest that the config allows.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        typed = "input delay:400ms"
        self.preview_on(model="load, change", config=typed, model_seq=typed)

    def preview_on(self, **triggers: str) -> None:
        """Have the page say again what the model is when a field changes: its htmx trigger by name."""
        asks = {
            "hx-post": reverse_lazy("planning:plan-model"),
            "hx-target": "#model-figures",
            "hx-sync": "closest form:replace",
        }
        for name, trigger in triggers.items() if self.previews else ():
            self.fields[name].widget.attrs |= {**asks, "hx-trigger": trigger}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("model") == CONFIG and self.needs_model(cleaned):
            try:
                cleaned["model"] = _config(cleaned)
            except InputError as error:
                at = "config_file" if cleaned.get("config_file") else "config"
                self.add_error(at, str(error))
        return cleaned

    def needs_model(self, cleaned: dict[str, Any]) -> bool:
        """Whether the form reads the model at all."""
        return True


def model_values(model: str | dict[str, Any]) -> dict[str, Any]:
    """The fields' values for the model of a document; the inverse of the form's `clean`."""
    if isinstance(model, str) or "model_type" not in model:
        return {"model": model}
    config = {name: value for name, value in model.items() if name != "seq"}
    return {"model": CONFIG, "config": json.dumps(config, indent=1), "model_seq": model.get("seq")}


def figures_for(model: str | dict[str, Any], stages: int = 1) -> ModelFigures:
    """What the model of a plan's document is. Raises InputError where it is none."""
    name = model if isinstance(model, str) else str(model.get("model_type", "as given"))
    assumed: Any = None
    if isinstance(model, str):
        shape: Transformer = preset(model, stages=stages)
    elif "model_type" in model:
        config = read_config(model)
        shape, assumed = config.shape, config.assumed
    else:
        shape = shape_of(parse(ModelInput, model))
    return figures_of(shape, DTYPE, name, assumed)


def memory_for(model: str | dict[str, Any], *, stages: int, **layout: int) -> float | None:
    """Bytes on a GPU of the fullest stage, with one microbatch in flight; None if there is no such layout.

    layout : `tp`, `cp`, `ep` and `micro_batch` of a plan's job.
    """
    try:
        given = parse(JobInput, {"model": model, "partitions": stages, "microbatches": 1, **layout})
        assert given.model is not None
        memory = stages_of(given, given.layouts[0], shape_of(given.model, stages)).memory
    except InputError:
        return None
    return max(stage.total_bytes(1) for stage in memory) if memory else None


def _config(cleaned: dict[str, Any]) -> dict[str, Any]:
    document = given_document(
        cleaned.get("config_file"), cleaned.get("config") or "", field="config", most_bytes=MOST_CONFIG_BYTES
    )
    if cleaned.get("model_seq"):
        document = {**document, "seq": cleaned["model_seq"]}
    read_config(document)
    return document
