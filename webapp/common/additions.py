"""What later apps add to the pages of earlier ones: each registers it when it starts.

A page takes what its additions know into its context (`extended`), and names the places where their templates
stand: `{% additions "node:ranks" %}`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest

Context = dict[str, Any]


def nothing(request: HttpRequest, context: Context) -> Context:
    """Of an addition whose templates need no more than the page has."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What one app adds to one page.

    page : as its view calls it.
    order : additions are asked, and stand at a place, by it.
    name : of the addition, of its own on the page.
    context : (request, the page's context with what earlier additions gave) → what is added to it.
    templates : path of the template by the place on the page where it stands.
    """

    page: str
    order: int
    name: str
    context: Callable[[HttpRequest, Context], Context] = nothing
    templates: Mapping[str, str] = field(default_factory=dict)


_additions: dict[tuple[str, str], Addition] = {}


def register(*additions: Addition) -> None:
    """Add additions; one that is registered again takes its own place."""
    for addition in additions:
        _additions[addition.page, addition.name] = addition


def extended(page: str, request: HttpRequest, context: Context) -> Context:
    """The context of `page` with what its additions give."""
    context = dict(context)
    for addition in _of(page):
        context |= addition.context(request, context)
    return context


def templates_at(place: str) -> list[str]:
    """The templates that stand at a place, called "page:place"."""
    page, _, spot = place.partition(":")
    return [addition.templates[spot] for addition in _of(page) if spot in addition.templates]


def _of(page: str) -> list[Addition]:
    matching = (addition for addition in _additions.values() if addition.page == page)
    return sorted(matching, key=lambda addition: addition.order)
