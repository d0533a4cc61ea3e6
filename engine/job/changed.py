"""Changes to a job's document: fields by their path in its sections, such as `cell.stages`."""

from collections.abc import Mapping
from typing import Any


def changed(document: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a document in sections with other values; a field that is to be None is left out.

    values : by path; a path without a dot is a whole section.
    """
    copy = {name: dict(part) if isinstance(part, dict) else part for name, part in document.items()}
    for path, value in values.items():
        section, _, name = path.partition(".")
        part = copy.setdefault(section, {}) if name else copy
        if value is None:
            part.pop(name or section, None)
        else:
            part[name or section] = value
        if name and not part:
            del copy[section]
    return copy


def value_at(document: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a path, or `default` where it is not given."""
    section, _, name = path.partition(".")
    value = document.get(section)
    if name:
        value = (value or {}).get(name)
    return default if value is None else value


def fields_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of all sections by their path; what is no section stands under its own name."""
    fields: dict[str, Any] = {}
    for section, part in document.items():
        inside = isinstance(part, dict)
        fields |= {f"{section}.{name}": value for name, value in part.items()} if inside else {section: part}
    return fields
