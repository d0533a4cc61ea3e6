"""Where the first values of a form may come from: apps offer what they have when they start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from webapp.common.queries import whole

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Rows of one kind that fill in a form.

    form : as its view calls it.
    parameter : of the address, which names a row by its id.
    values : (request, id) → the form's first values, None where that row has none, and what the page says
        of it. Raises Http404 where the person may not see the row.
    """

    form: str
    parameter: str
    values: Callable[[HttpRequest, int], tuple[Values | None, Values]]


_sources: dict[tuple[str, str], Source] = {}


def register(*sources: Source) -> None:
    """Add sources; one that is registered again takes its own place."""
    for source in sources:
        _sources[source.form, source.parameter] = source


def first_values(form: str, request: HttpRequest) -> tuple[Values | None, Values]:
    """(first values, context) of the row that the address names; (None, {}) where it names none."""
    for source in _sources.values():
        pk = whole(request.GET.get(source.parameter))
        if source.form == form and pk is not None:
            return source.values(request, pk)
    return None, {}
