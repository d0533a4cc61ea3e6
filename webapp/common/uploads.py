"""A document that a form takes as a file or as text."""

from typing import Any

from engine.documents import read_document
from engine.errors import InputError


def given_document(file: Any, text: str, *, field: str, most_bytes: int) -> dict[str, Any]:
    """The document of an uploaded `file`, or of `text` if there is none.

    Raises
    ------
    InputError
        A file that is too large or no text, or anything that is no object with named fields.
    """
    if file is not None:
        if file.size > most_bytes:
            raise InputError("file", f"{file.size:,} bytes", f"at most {most_bytes:,}")
        try:
            text = file.read().decode()
        except UnicodeDecodeError:
            raise InputError("file", file.name, "must be UTF-8 text") from None
    if not text.strip():
        raise InputError(field, "", "choose a file, or paste its text")
    document = read_document(text, field)
    if not isinstance(document, dict):
        raise InputError(field, type(document).__name__, "must be an object with named fields")
    return document
