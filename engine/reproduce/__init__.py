"""Published figures compared with our own, for `meridian reproduce`.

One module per paper; each lists its experiments in `EXPERIMENTS`. A row with a tolerance is a check, one
without is informative. `ours` is always computed, never written down.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

# paper → module with its EXPERIMENTS
PAPERS = {
    "atlas": "engine.reproduce.atlas",
    "crosspipe": "engine.reproduce.crosspipe",
    "atom": "engine.reproduce.atom",
    "rail-only": "engine.reproduce.rail_only",
    "dtfm": "engine.reproduce.dtfm",
    "bubbletea": "engine.reproduce.bubbletea",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure and ours.

    tolerance : largest |ours / paper − 1| (|ours − paper| if paper is 0), None for an informative row.
    """

    name: str
    paper: float | None
    ours: float
    unit: str
    tolerance: float | None = None
    note: str = ""

    @property
    def deviation(self) -> float | None:
        """ours / paper − 1, or ours if the paper's figure is 0; None if the paper prints none."""
        if self.paper is None:
            return None
        return self.ours - self.paper if self.paper == 0 else self.ours / self.paper - 1

    @property
    def ok(self) -> bool | None:
        """Whether ours is within the tolerance; None for an informative row."""
        if self.tolerance is None or self.deviation is None:
            return None
        # A figure that is exactly as printed must not fail by rounding.
        return math.isfinite(self.ours) and abs(self.deviation) <= self.tolerance + 1e-12

    def as_dict(self) -> dict[str, Any]:
        """The row as docs/dev/contracts.md names its fields."""
        return {
            "name": self.name,
            "paper": self.paper,
            "ours": self.ours if math.isfinite(self.ours) else None,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "ok": self.ok,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line or group of bars of a plot."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot for the report."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Literal["line", "bars"] = "line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of an experiment."""

    rows: tuple[Row, ...]
    plots: tuple[Plot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One figure, table or claim of a paper: its name, its title, and a function that computes it."""

    name: str
    title: str
    run: Callable[[], Outcome]


def experiments() -> dict[str, Experiment]:
    """Every experiment by name, in the order of the papers."""
    modules = (importlib.import_module(module) for module in PAPERS.values())
    return {experiment.name: experiment for module in modules for experiment in module.EXPERIMENTS}
