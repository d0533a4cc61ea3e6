#!/usr/bin/env python3
"""Which tests went and which came, between two listings of `pytest --collect-only -q`.

    python -m pytest --collect-only -q > before.txt   # on the one commit
    python -m pytest --collect-only -q > after.txt    # on the other
    python scripts/tests_compared.py before.txt after.txt

Prints "- id" for each test that went and "+ id" for each that came. Ends with 1 where any went, and with 2
where a file holds no listing or one that pytest did not finish.
"""

import re
import sys
from collections import Counter
from pathlib import Path

_END = re.compile(r"^(?:no tests collected|\d+(?:/\d+)? tests? collected)")


def listed(text: str) -> Counter[str]:
    """The ids of a listing; ValueError where it is none, or pytest could not collect everything."""
    lines = text.splitlines()
    if any(line.startswith("ERROR ") for line in lines):
        raise ValueError("pytest could not collect everything")
    end = next((at for at, line in enumerate(lines) if _END.match(line)), None)
    if end is None:
        raise ValueError("no listing of pytest --collect-only -q")
    return Counter(line for line in lines[:end] if "::" in line)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    lists = []
    for name in arguments:
        try:
            lists.append(listed(Path(name).read_text()))
        except (OSError, UnicodeDecodeError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
    before, after = lists
    went, came = before - after, after - before
    for sign, ids in (("-", went), ("+", came)):
        for one in sorted(ids.elements()):
            print(sign, one)
    print(f"{before.total()} before, {after.total()} after: {went.total()} went, {came.total()} came")
    return 1 if went else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
