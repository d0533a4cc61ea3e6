"""What the Papers pages show: the newest result of every experiment, and the figures that differ most."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from engine.reproduce import ORDERS, PAPERS, STATUSES, experiments, order_name
from webapp.common.figures import Column, Figures
from webapp.common.markup import DASH
from webapp.computations.models import OPEN, Computation, ComputationKind

LABELS = {
    "atlas": "Atlas",
    "crosspipe": "CrossPipe",
    "atom": "ATOM",
    "rail-only": "Rail-only",
    "dtfm": "DT-FM",
    "bubbletea": "BubbleTea",
    "sailor": "Sailor",
}
# Results older than those of this many computations are not looked for.
MOST_READ = 40
HEADLINES = 10
# How a status is drawn; a row that is not as stated is drawn as a failure.
MARKS = {"met": "finished", "refuted": "warn"}
SIGNS = {"equal": "", "at most": "≤ ", "at least": "≥ "}


def computations(user: Any) -> Any:
    """Computations of papers that `user` may see."""
    return Computation.objects.visible_to(user).of(ComputationKind.PAPERS).select_related("team")


def open_ones(user: Any) -> list[Computation]:
    """Those that wait or are at work, the one at work first."""
    rows = computations(user).filter(state__in=OPEN).defer("answer")
    return sorted(rows, key=lambda row: (row.state == "queued", row.created_at))


def last_ended(user: Any) -> Computation | None:
    """The newest that is neither waiting nor at work."""
    return computations(user).exclude(state__in=OPEN).defer("answer").order_by("-created_at").first()


def results(user: Any) -> dict[str, dict[str, Any]]:
    """Experiment → its newest result, in the order of the papers; those without one are left out."""
    names = experiments()
    newest: dict[str, dict[str, Any]] = {}
    answered = computations(user).filter(answer__isnull=False).order_by("-created_at")
    for answer in answered.values_list("answer", flat=True)[:MOST_READ].iterator(chunk_size=1):
        for name, result in answer.get("experiments", {}).items():
            if name not in newest:
                newest[name] = result | {"computed_at": datetime.fromisoformat(result["computed_at"])}
        if len(newest) >= len(names):
            break
    return {name: newest[name] for name in names if name in newest}


def of_paper(paper: str, names: Iterable[str]) -> list[str]:
    """Those of the experiments `names` that belong to `paper`."""
    return [name for name in names if name.startswith(f"{paper}-")]


def named(what: str) -> list[str]:
    """The experiments of a paper, the one of that name, or all where `what` is empty; none if unknown."""
    names = list(experiments())
    return names if not what else of_paper(what, names) if what in PAPERS else [n for n in names if n == what]


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as people read it."""
    fails = row["ok"] is False
    difference = difference_of(row)
    return {
        **row,
        "printed": SIGNS[row["relation"]] + figure(row["paper"]),
        "ours_text": DASH if row["ours"] is None else figure(row["ours"]),
        "difference": DASH if difference is None else signed(100 * difference),
        "by_order_text": by_order_text(row),
        "word": f"{row['status']}, but not as stated" if fails else row["status"],
        "mark": "failed" if fails else MARKS.get(row["status"], row["status"]),
    }


def by_order_text(row: dict[str, Any]) -> str:
    """Ours under every rule of contention and with auto; empty if the row has no shared links, or was
    computed before rows had this."""
    by_order = row.get("by_order")
    if not by_order:
        return ""
    return ", ".join(f"{order_name(order)} {figure(by_order[order])}" for order in ORDERS)


def difference_of(row: dict[str, Any]) -> float | None:
    """ours / printed − 1; None where one is missing or 0 is printed."""
    return row["ours"] / row["paper"] - 1 if row["paper"] and row["ours"] is not None else None


def signed(value: float) -> str:
    """One decimal and its sign, which 0 has not."""
    rounded = round(value, 1)
    return f"{rounded:+,.1f}".replace("-", "−") if rounded else "0.0"


def figure(value: float) -> str:
    """Four digits, with separators from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def counts(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """How many rows have each status; those that are not as stated count as "failing" alone."""
    counted = dict.fromkeys((*STATUSES, "failing"), 0)
    for row in rows:
        counted["failing" if row["ok"] is False else row["status"]] += 1
    return counted


def differing(by_experiment: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are not met: failing, refuted, explained, untested; of each the largest difference first."""
    order = {"refuted": 1, "explained": 2, "untested": 3}

    def urgency(row: dict[str, Any]) -> tuple[int, float]:
        return 0 if row["ok"] is False else order[row["status"]], -abs(difference_of(row) or 0.0)

    rows = [
        {**row, "paper_name": paper, "label": LABELS[paper]}
        for paper in PAPERS
        for name in of_paper(paper, by_experiment)
        for row in by_experiment[name]["rows"]
        if row["ok"] is False or row["status"] in order
    ]
    return [shown(row) for row in sorted(rows, key=urgency)]


def papers(by_experiment: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per paper: counts, how many of its experiments are computed, and since when."""
    names = experiments()
    lines = []
    for paper in PAPERS:
        all_, have = of_paper(paper, names), of_paper(paper, by_experiment)
        rows = [row for name in have for row in by_experiment[name]["rows"]]
        lines.append(
            {
                "name": paper,
                "label": LABELS[paper],
                "counts": counts(rows) if have else None,
                "experiments": len(all_),
                "computed": len(have),
                "oldest": min((by_experiment[name]["computed_at"] for name in have), default=None),
            }
        )
    return lines


def table(by_experiment: dict[str, dict[str, Any]]) -> Figures:
    """Every row, for the file."""
    text = ("experiment", "name", "relation", "unit", "status", "assumes", "note")
    numbers = ("paper", "ours", "tolerance", "expected_deviation", "without_cause", "bound")
    columns = [Column(label=name, key=name) for name in text]
    orders = [f"ours_{order}" for order in ORDERS]
    columns[2:2] = [Column(label=name, key=name, decimals=4) for name in (*numbers, *orders)]
    rows = [
        {**dict.fromkeys(orders), **row, **_flat(row)}
        for result in by_experiment.values()
        for row in result["rows"]
    ]
    return Figures(name="papers", title="Figures of the papers", rows=rows, columns=columns)


def _flat(row: dict[str, Any]) -> dict[str, float]:
    return {f"ours_{order}": value for order, value in (row.get("by_order") or {}).items()}
