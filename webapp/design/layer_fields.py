"""Measured layers of a form, in place of a model: what `meridian profile --swap --json` prints."""

from typing import Any

from django import forms
from django.utils.text import capfirst

from engine.errors import InputError
from engine.plan.swap.measured import layers_of
from webapp.common.uploads import given_document

LAYERS = "layers"  # the choice of a model that is none
LAYERS_CHOICE = (LAYERS, "Measured layers")
FIELDS = ["layers_file", "layers"]
# They stand in the address, some 160 layers. With its escapes, the address stays below what the web process
# takes (webapp/edge/uvicorn_server.py).
MOST_LAYERS_BYTES = 36 << 10


class LayerFields(forms.Form):
    """Fields `layers_file` and `layers`; a valid form whose model is LAYERS has the list in `layers`.

    The form has the fields `model` and `gradients`.
    """

    layers_file = forms.FileField(required=False, label="File of measured layers")
    layers = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false", "data-most-bytes": MOST_LAYERS_BYTES}),
        required=False,
        label="Measured layers",
        help_text="What meridian profile --swap --json prints. A file that is chosen replaces it. The times "
        "are those measured: mini-batch size, numbers, recomputation, MFU and gaps of a model do not count.",
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        file, text = cleaned.get("layers_file"), cleaned.get("layers") or ""
        at = "layers_file" if file else "layers"
        if cleaned.get("model") == LAYERS and "gradients" in cleaned:
            try:
                cleaned["layers"] = _layers(file, text, cleaned["gradients"])
            except InputError as error:
                if error.field == "gradients":
                    self.add_error("gradients", f"{capfirst(error.allowed)}.")
                else:
                    self.add_error(at, str(error))
        elif cleaned.get("model") not in (None, LAYERS) and (file or text):
            self.add_error(at, "Choose Measured layers as the model, or leave this empty.")
        return cleaned


def _layers(file: Any, text: str, gradients: str) -> Any:
    if len(text.encode()) > MOST_LAYERS_BYTES:
        raise InputError("layers", f"{len(text.encode()):,} bytes", f"at most {MOST_LAYERS_BYTES:,}")
    profile = given_document(file, text, field="layers", most_bytes=MOST_LAYERS_BYTES)
    return layers_of(profile, gradients=gradients, source=file.name if file else "this text")
