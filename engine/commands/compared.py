"""Policies compared, as a table and as files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.commands.files import folder, write_json
from engine.commands.reports import write_result
from engine.commands.tables import number, render
from engine.schedule.registry import name_of
from engine.simulate import Compared


def comparison(compared: Sequence[Compared]) -> Iterator[str]:
    """A table, one row a policy: makespan, stage span and memory together, as one alone flatters."""
    jitter = any(row.result and row.result.scenario.jitter > 0 for row in compared)
    head = [
        "policy",
        "makespan",
        "lower\nbound",
        "gap",
        "utilization",
        "largest\nstage span",
        "peak in\nflight",
        "search",
    ]
    if jitter:
        head += ["planned", "95 % of draws\nwithin"]
    yield from render([*head, "note"], [_row(row, jitter) for row in compared], left=(0, len(head)))


def _row(compared: Compared, jitter: bool) -> list[str | None]:
    result = compared.result
    timeline = result.timeline if result else None
    if result is None or timeline is None:
        first = (compared.reason or "").splitlines()[0]
        return [name_of(compared.policy), *[None] * (9 if jitter else 7), first]
    cells = [
        name_of(compared.policy),
        f"{timeline.makespan:.6g}",
        f"{result.lower_bound:.6g}",
        f"{100 * (result.gap or 0):.1f} %",
        f"{100 * timeline.utilization():.1f} %",
        f"{timeline.stage_spans().max():.6g}",
        f"{timeline.peak_in_flight().max():g}",
        f"{number(result.search_s)} s" if result.stopped_by else None,
    ]
    if jitter:
        planned, drawn = result.planned_makespan, result.robustness
        cells += [f"{planned:.6g}" if planned else None, f"{drawn.p95:.6g}" if drawn else None]
    return [*cells, _note(compared)]


def _note(compared: Compared) -> str:
    result = compared.result
    if result is None or result.chosen is None:
        return ""
    parts = ["optimal" if result.optimal else "", result.chosen.idea or ""]
    if result.stopped_by in ("time", "cancelled"):
        parts.append(f"stopped: {result.stopped_by}")
    return ", ".join(filter(None, parts))


def write_all(compared: Sequence[Compared], out: Path) -> None:
    """compared.json, and a folder per feasible policy with its own files."""
    write_json({"results": [row.as_dict() for row in compared]}, out / "compared.json")
    for row in compared:
        if row.result and row.result.feasible:
            write_result(row.result, folder(out / row.policy))
