"""What an audit row changed, field by field."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ABSENT = object()
MOST_IN_A_SUMMARY = 3
LONGEST = 40  # characters of a value in a summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field: its path ("request.datacenters.0.name"), before and after as text; None: absent."""

    path: str
    before: str | None
    after: str | None

    @property
    def changed(self) -> bool:
        return self.before != self.after


def differences(before: Any, after: Any) -> list[Difference]:
    """Every leaf of `before` and `after` (JSON), in the order in which they stand there."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    paths = [*old, *(path for path in new if path not in old)]
    return [Difference(path=path, before=_text(old, path), after=_text(new, path)) for path in paths]


def summary(before: Any, after: Any) -> str:
    """The first fields that changed, on one line: "role: viewer → operator"; empty where nothing is known."""
    changed = [one for one in differences(before, after) if one.changed]
    parts = []
    for one in changed[:MOST_IN_A_SUMMARY]:
        values = [_short(value) for value in (one.before, one.after) if value is not None]
        parts.append(f"{one.path}: {' → '.join(values)}")
    more = len(changed) - len(parts)
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{i}" if path else str(i))
    elif path:
        yield path, value


def _text(leaves: dict[str, Any], path: str) -> str | None:
    value = leaves.get(path, ABSENT)
    if value is ABSENT:
        return None
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
