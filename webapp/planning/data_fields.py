"""Fields of what a launch reads: its data, its tokenizer, and the weights that it begins with."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from engine.job.job import TrainJob
from webapp.common.document_fields import document_field

of_job = partial(document_field, TrainJob)


def absolute(path: str) -> None:
    """Refuse a path that nodes would read from wherever their agent was started."""
    if not path.startswith("/"):
        raise ValidationError("Enter a path that begins with /: nodes have no folder in common.")


def _path(path: str, label: str, help_text: str) -> Any:
    """A field for a file or folder of the nodes, at `path` of a job's document."""
    shown: Any = {"label": label, "help_text": help_text, "max_length": 500}
    return of_job(path, **shown, validators=[absolute], required=False)


def vocabulary_field() -> Any:
    """A field for the number of tokens of a model of our own shapes."""
    return of_job(
        "model.vocab",
        label="Vocabulary, tokens",
        help_text="At least as many as the tokenizer or the prepared data has. Leave empty to train on "
        "bytes.",
    )


# Of each field of DataFields, where its value stands in a job's document.
PATH_OF = {
    "data": "data.files",
    "prepared": "data.prepared",
    "tokenizer": "model.tokenizer",
    "init": "model.init",
}


class DataFields(forms.Form):
    """Files that the ranks read, at the same path on every node; the site reads none of them."""

    data = _path(
        PATH_OF["data"],
        "Training data, text",
        "A text file or folder, at the same path on every node. Leave empty for the source text of Python's "
        "standard library, or if the data is prepared.",
    )
    prepared = _path(
        PATH_OF["prepared"],
        "Training data, prepared",
        "A folder that meridian data prepare wrote, or NAME.idx of Megatron, at the same path on every node. "
        "Takes the place of text.",
    )
    tokenizer = _path(
        PATH_OF["tokenizer"],
        "Tokenizer",
        "A tokenizer.json of Hugging Face, at the same path on every node. Leave empty to read text as "
        "bytes, or if the data is prepared: the folder has its own.",
    )
    init = _path(
        PATH_OF["init"],
        "Starting weights",
        "A folder with the weights of the model, as transformers saves them, at the same path on every node. "
        "Leave empty to draw them at random.",
    )


def files_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Of a form's values, those of these fields that are given."""
    return {name: values[name] for name in PATH_OF if values.get(name)}
