"""The options `--batches` and `--recompute`: larger global batches and other recomputation to compare."""

from collections.abc import Callable
from typing import Any

import click

from engine.errors import InputError
from engine.plan.cross_dc_request import MOST_FACTOR, MOST_VARIANTS

MODES = ("none", "selective", "full")


def _listed(read: Callable[[str], Any], allowed: str) -> Callable[..., list[Any]]:
    def callback(_context: click.Context, option: click.Parameter, text: str | None) -> list[Any]:
        values = [] if text is None else [read(part.strip()) for part in text.split(",")]
        if None in values or len(set(values)) < len(values) or len(values) > MOST_VARIANTS:
            raise InputError(
                f"--{option.name}", text, f"must be {allowed}, each once, at most {MOST_VARIANTS} of them"
            )
        return values

    return callback


def _factor(text: str) -> int | None:
    is_short = text.isascii() and text.isdecimal() and len(text) < 10
    return int(text) if is_short and 1 <= int(text) <= MOST_FACTOR else None


batches_option = click.option(
    "--batches",
    metavar="N1,N2,…",
    callback=_listed(_factor, f"whole numbers from 1 to {MOST_FACTOR:,}"),
    help="Compare with global batches of so many times the document's.",
)
recompute_option = click.option(
    "--recompute",
    metavar="MODE1,MODE2,…",
    callback=_listed(lambda text: text if text in MODES else None, ", ".join(MODES)),
    help="Compare with this recomputation in place of the document's: none, selective, full.",
)
