"""What stands against a deletion: the runs, nodes, links and plans that refer to a thing."""

from typing import Any

from django.db import models

from webapp.common.dependants import dependants_of
from webapp.inventory.models import Thing

MOST_NAMED = 4


def blocked_by(thing: Thing) -> str:
    """Why `thing` cannot be deleted, as a sentence that names what refers to it; empty where it can."""
    used = ", ".join(part for part in (_named(*pair) for pair in dependants_of(thing)) if part)
    return f"{thing} cannot be deleted: {used} would lose it." if used else ""


def _named(kind: str, rows: models.QuerySet[Any]) -> str:
    total = rows.count()
    if not total:
        return ""
    names = ", ".join(str(row) for row in rows[:MOST_NAMED])
    more = f" and {total - MOST_NAMED} more" if total > MOST_NAMED else ""
    several = f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"
    return f"{kind if total == 1 else several} {names}{more}"
