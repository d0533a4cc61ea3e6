"""Published figures compared with our own, for `meridian reproduce`.

One module per paper; each lists its experiments in `EXPERIMENTS`. Each row answers one printed figure: it is
met, explained, refuted or untested. `ours` is always computed, never written down.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.schedule.contention import RULES, contention_name
from engine.schedule.scenario import Contention

# paper → module with its EXPERIMENTS
PAPERS = {
    "atlas": "engine.reproduce.atlas",
    "crosspipe": "engine.reproduce.crosspipe",
    "atom": "engine.reproduce.atom",
    "rail-only": "engine.reproduce.rail_only",
    "dtfm": "engine.reproduce.dtfm",
    "bubbletea": "engine.reproduce.bubbletea",
    "sailor": "engine.reproduce.sailor",
}
# What a figure may move away from its expected deviation, as a share of the printed one. Every run is
# determined by its input, so this only leaves room for another machine's rounding.
EXPECTED_SLACK = 0.01
# A figure that is exactly as printed must not fail by rounding.
ROUNDING = 1e-12

Relation = Literal["equal", "at most", "at least"]
# The answers that a row of a cell with shared links shows: every rule of contention, and auto's schedule.
Order = Contention | Literal["auto"]
ORDERS: tuple[Order, ...] = (*RULES, "auto")
Status = Literal["met", "explained", "refuted", "untested"]
STATUSES: tuple[Status, ...] = ("met", "explained", "refuted", "untested")


def order_name(order: Order) -> str:
    """The display name of a rule; "auto" for auto."""
    return "auto" if order == "auto" else contention_name(order)


def deviation(paper: float, ours: float) -> float:
    """ours / paper − 1, or ours if the paper's figure is 0."""
    return ours if paper == 0 else ours / paper - 1


def within(paper: float, ours: float, tolerance: float, relation: Relation = "equal") -> bool:
    """Whether `ours` agrees with a printed figure or bound, up to `tolerance` as a share of it."""
    if not math.isfinite(ours):
        return False
    off = deviation(paper, ours)
    if relation == "equal":
        off = abs(off)
    elif relation == "at least":
        off = -off
    return off <= tolerance + ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why our figure differs: a second run with the cause removed lands within the row's tolerance.

    cause : what our run has and the second run has not.
    without_cause : the figure of the second run.
    """

    cause: str
    without_cause: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuted:
    """What forbids the printed figure: a proven bound, or the paper's own other figures.

    allows : whether the figure may be "at most" or "at least" `bound`. The printed one lies beyond.
    bound : computed, never written down.
    by : what gives the bound.
    """

    allows: Literal["at most", "at least"]
    bound: float
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Untested:
    """Why the printed figure cannot be tested. All papers together may have ten of these."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure and ours.

    paper : the printed figure.
    ours : NaN only in an untested row that has no figure.
    relation : the figure is printed as an equality, or as a bound: "below 5 %" is ``at most`` 5.
    tolerance : largest |ours / paper − 1| (|ours − paper| if paper is 0) of a row that is met; of an
        explained row, that of the run without the cause. For a bound, how far ours may lie on its wrong side.
    expected_deviation : ours / paper − 1 as it is known to come out, in explained and refuted rows.
    answer : None in a row that is met.
    by_order : if pipelines share links, our figure under each of ORDERS; None: nothing to contend for.
    assumes : what our figure assumes beyond what the paper prints.

    Raises ValueError if the fields do not fit the answer.
    """

    name: str
    paper: float
    ours: float
    unit: str
    relation: Relation = "equal"
    tolerance: float | None = None
    expected_deviation: float | None = None
    answer: Explained | Refuted | Untested | None = None
    by_order: Mapping[Order, float] | None = None
    assumes: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        differs = isinstance(self.answer, Explained | Refuted)
        if self.answer is None and self.tolerance is None:
            raise ValueError(f"{self.name}: a row without an answer is met within a tolerance")
        if differs != (self.expected_deviation is not None):
            raise ValueError(
                f"{self.name}: an expected deviation belongs to explained and refuted rows alone"
            )
        if isinstance(self.answer, Explained) and self.tolerance is None:
            raise ValueError(f"{self.name}: the run without the cause needs a tolerance")
        if isinstance(self.answer, Refuted | Untested) and self.tolerance is not None:
            raise ValueError(f"{self.name}: a row that is not tested against its figure has no tolerance")
        if self.by_order is not None and tuple(self.by_order) != ORDERS:
            raise ValueError(f"{self.name}: the orders are {', '.join(ORDERS)}, each once")

    @property
    def status(self) -> Status:
        """What the row says of the printed figure; `ok` says whether that holds."""
        if isinstance(self.answer, Explained):
            return "explained"
        if isinstance(self.answer, Refuted):
            return "refuted"
        if isinstance(self.answer, Untested):
            return "untested"
        return "met"

    @property
    def deviation(self) -> float:
        """ours / paper − 1, or ours if the paper's figure is 0."""
        return deviation(self.paper, self.ours)

    @property
    def ok(self) -> bool | None:
        """Whether what the row says holds; None if it is untested."""
        if isinstance(self.answer, Untested):
            return None
        if self.answer is None:
            assert self.tolerance is not None
            return within(self.paper, self.ours, self.tolerance, self.relation)
        assert self.expected_deviation is not None
        off = deviation(self.paper, self.ours) - self.expected_deviation
        return math.isfinite(off) and abs(off) <= EXPECTED_SLACK + ROUNDING and self._answer_holds()

    def _answer_holds(self) -> bool:
        if isinstance(self.answer, Explained):
            assert self.tolerance is not None
            return within(self.paper, self.answer.without_cause, self.tolerance, self.relation)
        assert isinstance(self.answer, Refuted)
        return math.isfinite(self.answer.bound) and not within(
            self.answer.bound, self.paper, 0, self.answer.allows
        )

    @property
    def remark(self) -> str:
        """The answer and the note as one text."""
        answer = ""
        if isinstance(self.answer, Explained):
            answer = f"{self.answer.without_cause:.4g} without {self.answer.cause}"
        elif isinstance(self.answer, Refuted):
            answer = f"{self.answer.allows} {self.answer.bound:.4g}: {self.answer.by}"
        elif isinstance(self.answer, Untested):
            answer = self.answer.why
        return "; ".join(part for part in (answer, self.note) if part)

    def as_dict(self, experiment: str) -> dict[str, Any]:
        """The row as docs/dev/contracts.md names its fields."""
        explained = self.answer if isinstance(self.answer, Explained) else None
        refuted = self.answer if isinstance(self.answer, Refuted) else None
        return {
            "experiment": experiment,
            "name": self.name,
            "paper": self.paper,
            "relation": self.relation,
            "ours": _finite(self.ours),
            "unit": self.unit,
            "tolerance": self.tolerance,
            "expected_deviation": self.expected_deviation,
            "status": self.status,
            "ok": self.ok,
            "cause": explained.cause if explained else None,
            "without_cause": _finite(explained.without_cause) if explained else None,
            "refuted_by": refuted.by if refuted else None,
            "allows": refuted.allows if refuted else None,
            "bound": _finite(refuted.bound) if refuted else None,
            "by_order": {order: _finite(value) for order, value in self.by_order.items()}
            if self.by_order
            else None,
            "assumes": self.assumes,
            "note": self.remark,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
