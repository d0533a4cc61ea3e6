"""Tables of layers in documents: commands read the file that a document names in place of a table."""

from typing import Any

from engine.documents import load_document


def with_tables(document: Any, *paths: tuple[str, ...]) -> Any:
    """`document` with the table of the file wherever text stands at one of `paths`.

    Only commands do this: a site must not read the files that somebody names.

    Raises
    ------
    InputError
        A file cannot be read.
    """
    for path in paths:
        document = _with_table(document, path)
    return document


def _with_table(part: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return load_document(part) if isinstance(part, str) else part
    if not isinstance(part, dict) or path[0] not in part:
        return part
    return {**part, path[0]: _with_table(part[path[0]], path[1:])}
