"""`meridian plan --what-if`: the plan again after each change that it may have to bear."""

from typing import Any

from engine.commands.tables import number, render
from engine.inputs import parse
from engine.plan.request import PlanRequest
from engine.plan.what_if import changes, difference, figures, lost, no_option, with_change

AS_PLANNED = "as planned"


def what_ifs(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures of the document as it is, then of each change: `change`, `kind`, `name`, `feasible`,
    `reason` and those of `engine.plan.what_if.figures`. All have the small budget of a what-if."""
    rows = [_row({"change": AS_PLANNED, "kind": None, "name": None}, document, set())]
    for change in changes(document):
        changed = with_change(document, change)
        change_fields = {"change": str(change), "kind": change.kind, "name": change.name}
        rows.append(_row(change_fields, changed, lost(document, changed)))
    return rows


def _row(change_fields: dict[str, Any], document: dict[str, Any], names: set[str]) -> dict[str, Any]:
    from engine.plan.answer import WHAT_IF_S, plan  # compiled kernels: not loaded for a wrong document

    answer = plan(parse(PlanRequest, document), budget_s=WHAT_IF_S).as_dict()
    reason = None if answer["feasible"] else no_option(names, answer)
    return change_fields | {"feasible": answer["feasible"], "reason": reason} | figures(answer)


def what_if_lines(rows: list[dict[str, Any]]) -> list[str]:
    """A table of `what_ifs`, differences to the plan in percent; nothing without rows."""
    if not rows:
        return []
    head = ["what if", "iteration\nms", "\n%", "throughput\npipelines/s", "\n%", "cost\n$/iteration", "\n%"]
    head += ["cost\n$/day", "GPUs\nused", ""]
    return ["", *render(head, [_cells(row, rows[0]) for row in rows], left=(0, len(head) - 1))]


def _cells(row: dict[str, Any], planned: dict[str, Any]) -> list[str | None]:
    return [
        row["change"],
        number(row["iteration_ms"], 1),
        _difference(row, planned, "iteration_ms"),
        number(row["throughput"], 3),
        _difference(row, planned, "throughput"),
        number(row["cost_per_iteration"], 4),
        _difference(row, planned, "cost_per_iteration"),
        number(row["cost_per_day"], 2),
        number(row["gpus"], 0),
        row["reason"] or "",
    ]


def _difference(row: dict[str, Any], planned: dict[str, Any], name: str) -> str | None:
    percent = None if row is planned else difference(row[name], planned[name])
    return None if percent is None else f"{percent:+.1f}"
