"""Measured stage times: the answer of `meridian profile`, read as times per stage."""

from collections.abc import Mapping
from typing import Any

from engine.errors import InputError

KINDS = ("forward", "backward", "recompute", "weight")
REQUIRED = ("forward", "backward")


def times_of_profile(document: Any) -> Any:
    """{forward, backward, recompute?, weight?}, each a list of ms by stage, from a profile's `rows`.

    A document without `rows` is returned as it is.

    Raises
    ------
    InputError
        A row lacks a time that others have, or rows are not those of stage 0, 1, … in order.
    """
    if not isinstance(document, Mapping) or "rows" not in document:
        return document
    rows = document["rows"]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise InputError("rows", rows, "must be the rows of a profile, one per stage")
    for i, row in enumerate(rows):
        if row.get("stage", i) != i:
            raise InputError(f"rows[{i}].stage", row["stage"], f"must be {i}: stages in order, without gaps")
    kinds = [kind for kind in KINDS if kind in REQUIRED or any(f"{kind}_ms" in row for row in rows)]
    for i, row in enumerate(rows):
        for kind in kinds:
            if f"{kind}_ms" not in row:
                raise InputError(f"rows[{i}].{kind}_ms", None, "required, as other stages have it")
    return {kind: [row[f"{kind}_ms"] for row in rows] for kind in kinds}
