"""Models in documents: commands read the file or folder that a document names in place of a model."""

from pathlib import Path
from typing import Any

from engine.documents import load_document
from engine.model.presets import PRESETS

CONFIG = "config.json"


def read_model(name: str) -> Any:
    """The document in a file, in a folder's config.json, or on standard input (``-``).

    Raises
    ------
    InputError
        It cannot be read.
    """
    path = Path(name)
    return load_document(path / CONFIG if path.is_dir() else name)


def with_model(document: Any, *path: str) -> Any:
    """`document` with the model of the file wherever text at `path` names one that is there.

    A preset's name is no file. Only commands do this: a site must not read the files that somebody names.
    Raises InputError if the file cannot be read.
    """
    if not path:
        named = isinstance(document, str) and document not in PRESETS and Path(document).exists()
        return read_model(document) if named else document
    if not isinstance(document, dict) or path[0] not in document:
        return document
    return {**document, path[0]: with_model(document[path[0]], *path[1:])}
