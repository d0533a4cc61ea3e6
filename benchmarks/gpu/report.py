"""What a part of the GPU benchmark says: tables and checks, as JSON and as Markdown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Cell = str | float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A figure beside its bar; `ok` is None where it has none."""

    name: str
    value: str
    bar: str = ""
    ok: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under columns."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(slots=True, kw_only=True)
class Report:
    """What one part found.

    error : why it has not ended, in one line.  skipped : what this machine lacks for it.
    """

    part: str
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    error: str = ""
    skipped: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Report":
        """The inverse of :meth:`as_dict`."""
        checks = [Check(**check) for check in values["checks"]]
        tables = [Table(**{**table, "columns": tuple(table["columns"])}) for table in values["tables"]]
        return cls(**{**values, "checks": checks, "tables": tables})


def markdown(reports: Sequence[Report], machine: str, date: str) -> str:
    """All reports as the section that docs/gpu.md includes."""
    lines = [f"Measured on {date}: {machine}.", ""]
    lines += ["| part | figure | value | bar | |", "| --- | --- | --- | --- | --- |"]
    for report in reports:
        if report.skipped:
            lines.append(f"| {report.part} | skipped | {report.skipped} | | |")
        if report.error:
            lines.append(f"| {report.part} | did not end | {report.error} | | no |")
        lines += [
            f"| {report.part} | {check.name} | {check.value} | {check.bar} | {_verdict(check.ok)} |"
            for check in report.checks
        ]
    for report in reports:
        for table in report.tables:
            lines += ["", f"**{table.title}**", "", *_rows(table)]
            if table.note:
                lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _verdict(ok: bool | None) -> str:
    return {True: "yes", False: "**no**", None: ""}[ok]


def _rows(table: Table) -> list[str]:
    lines = [f"| {' | '.join(table.columns)} |", "|" + " --- |" * len(table.columns)]
    return lines + [f"| {' | '.join(map(_cell, row))} |" for row in table.rows]


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
