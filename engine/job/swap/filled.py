"""What follows from strategy swap in a job's document."""

from typing import Any

from engine.job.sections.limits import MOST_RANKS
from engine.job.sections.strategy import SWAP


def filled(document: dict[str, Any]) -> dict[str, Any]:
    """A swap job's document with one stage, recomputation and devices in order; any other as it is.

    document : in sections.
    """
    strategy, cell = document.get("strategy"), document.get("cell")
    if not isinstance(strategy, dict) or strategy.get("kind") != SWAP or not isinstance(cell, dict):
        return document
    fields = {name: value for name, value in cell.items() if value is not None}
    own: dict[str, Any] = {"stages": 1, "recompute": True}
    workers = fields.get("pipelines", 1)
    if "devices" not in fields and isinstance(workers, int) and 1 <= workers <= MOST_RANKS:
        own["devices"] = {"pipelines": [[device] for device in range(workers)]}
    return {**document, "cell": {**own, **fields}}
