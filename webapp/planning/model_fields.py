"""The model of a plan's form: a preset, or a config.json of Hugging Face, uploaded or pasted."""

import json
from typing import Any

from django import forms
from django.urls import reverse_lazy

from engine.documents import read_document
from engine.errors import InputError
from engine.inputs import parse
from engine.model.description import ModelFigures, figures_of
from engine.model.document import ModelInput, shape_of
from engine.model.hugging_face import read_config
from engine.model.presets import PRESETS, preset
from engine.model.transformer import Transformer
from webapp.common.document_fields import document_field

CONFIG = "config"  # the choice that is no preset
MOST_CONFIG_BYTES = 128 << 10
DTYPE = "bf16"  # in which the form says how large weights and caches are


class ModelFields(forms.Form):
    """Fields `model`, `config_file`, `config` and `model_seq`; `take_model` puts what they say in `model`."""

    model = forms.ChoiceField(
        label="Model",
        choices=[*((name, name) for name in PRESETS), (CONFIG, "A config.json of Hugging Face")],
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
        asks = {
            "hx-post": reverse_lazy("planning:plan-model"),
            "hx-target": "#model-figures",
            "hx-sync": "closest form:replace",
        }
        whens = {"model": "load, change", "config": "input delay:400ms", "model_seq": "input delay:400ms"}
        for name, when in whens.items():
            self.fields[name].widget.attrs |= {**asks, "hx-trigger": when}

    def take_model(self, cleaned: dict[str, Any]) -> None:
        """Put the config that is chosen in the place of the choice; errors stand at `config`."""
        if cleaned.get("model") != CONFIG:
            return
        try:
            cleaned["model"] = _config(cleaned)
        except InputError as error:
            at = "config_file" if cleaned.get("config_file") else "config"
            self.add_error(at, str(error))


def model_values(model: str | dict[str, Any]) -> dict[str, Any]:
    """The fields' values for the model of a document; the inverse of `take_model`."""
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


def _config(cleaned: dict[str, Any]) -> dict[str, Any]:
    text = cleaned.get("config") or ""
    if (file := cleaned.get("config_file")) is not None:
        if file.size > MOST_CONFIG_BYTES:
            raise InputError("file", f"{file.size:,} bytes", f"at most {MOST_CONFIG_BYTES:,}")
        try:
            text = file.read().decode()
        except UnicodeDecodeError:
            raise InputError("file", file.name, "must be UTF-8 text") from None
    if not text.strip():
        raise InputError("config", "", "choose a file, or paste its text")
    document = read_document(text, "config")
    if not isinstance(document, dict):
        raise InputError("config", type(document).__name__, "must be an object with named fields")
    if cleaned.get("model_seq"):
        document = {**document, "seq": cleaned["model_seq"]}
    read_config(document)
    return document
