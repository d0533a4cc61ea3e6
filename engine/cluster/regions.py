"""Where data centres may stand: countries and regions of public clouds (engine/data/regions)."""

import csv
from functools import cache
from importlib.resources import files


@cache
def countries() -> dict[str, str]:
    """English names by ISO 3166-1 alpha-2 code."""
    return {row["code"]: row["name"] for row in _rows("countries")}


def _rows(name: str) -> list[dict[str, str]]:
    text = files("engine").joinpath(f"data/regions/{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
