#!/usr/bin/env python3
"""Lines and branches that the tests no longer reach, by file, between two reports of coverage.py.

    pip install coverage  # in no lock: nothing else needs it; pyproject.toml has its settings
    coverage run -m pytest -m "not long" -n 3; coverage combine; coverage json -o before.json
    ... on the other commit, with after.json
    python scripts/coverage_compared.py before.json after.json

Prints a line for each file that lost some. Where a file's code differs, it compares how many are not reached.
Ends with 1 where a file lost some, and with 2 where a report cannot be read or has no branches.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_SHOWN = 12
Arc = tuple[int, int]  # from line to line; a negative one leaves the function that begins there


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCoverage:
    """The lines and branches of one file: those that tests reached, and the others."""

    reached: frozenset[int | Arc]
    missed: frozenset[int | Arc]

    @classmethod
    def of(cls, report: dict[str, Any]) -> "FileCoverage":
        """Out of a file's part of `coverage json`. Raises KeyError where branches were not measured."""

        def both(lines: str, branches: str) -> frozenset[int | Arc]:
            return frozenset([*report[lines], *((start, end) for start, end in report[branches])])

        return cls(
            reached=both("executed_lines", "executed_branches"),
            missed=both("missing_lines", "missing_branches"),
        )

    def lost(self, after: "FileCoverage") -> str:
        """What `after` no longer reaches, in words; empty if that is nothing."""
        if self.reached | self.missed == after.reached | after.missed:
            gone = sorted(self.reached - after.reached, key=_lines)
            shown = ", ".join(map(_text, gone[:MOST_SHOWN])) + (", …" if len(gone) > MOST_SHOWN else "")
            return f"{len(gone)} of {len(self.reached)} no longer reached: {shown}" if gone else ""
        more = len(after.missed) - len(self.missed)
        return (
            f"its code differs: {len(after.missed)} not reached, {len(self.missed)} before"
            if more > 0
            else ""
        )


def _lines(one: int | Arc) -> Arc:
    return (one, 0) if isinstance(one, int) else one


def _text(one: int | Arc) -> str:
    return str(one) if isinstance(one, int) else f"{one[0]}→{one[1] if one[1] > 0 else 'exit'}"


def files_of(path: Path) -> dict[str, FileCoverage]:
    """The files of a report. Raises OSError, ValueError or KeyError where it is none, or has no branches."""
    return {name: FileCoverage.of(report) for name, report in json.loads(path.read_text())["files"].items()}


def losses(before: dict[str, FileCoverage], after: dict[str, FileCoverage]) -> Iterator[str]:
    """A line for each file that lost some. A file that is gone lost nothing: its code went with it."""
    for name in sorted(before.keys() & after.keys()):
        if lost := before[name].lost(after[name]):
            yield f"{name}: {lost}"


def main(arguments: list[str]) -> int:
    """Compare the two reports; the exit status."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    reports = []
    for name in arguments:
        try:
            reports.append(files_of(Path(name)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{name}: no report of coverage json with branches ({error!r})", file=sys.stderr)
            return 2
    lines = list(losses(*reports))
    for line in lines:
        print(line)
    reached = [sum(len(file.reached) for file in report.values()) for report in reports]
    print(f"{reached[0]} lines and branches reached before, {reached[1]} after; {len(lines)} files lost some")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
