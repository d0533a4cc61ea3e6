"""The answer of a command on standard output."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import click


def show(as_json: bool, answer: Callable[[], Any], lines: Callable[[], Iterable[str]]) -> None:
    """Print one JSON object, or lines of text; only the one that is asked for is made."""
    click.echo(json.dumps(answer(), allow_nan=False) if as_json else "\n".join(lines()))
