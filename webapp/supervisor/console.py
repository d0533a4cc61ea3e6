"""The supervisor's output: every line with the name of who says it."""

import os
import sys
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Console:
    """Prefixes lines with a name, in colour where a terminal shows it (and NO_COLOR is not set)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._colour = self._stream.isatty() and not os.environ.get("NO_COLOR")
        self._names: dict[str, int] = {}
        self._width = 10

    def line(self, name: str, text: str) -> None:
        """Write one line."""
        self._width = max(self._width, len(name))
        colour = _COLOURS[self._names.setdefault(name, len(self._names)) % len(_COLOURS)]
        prefix = f"{name:<{self._width}} | "
        if self._colour:
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        self.plain(prefix + text)

    def plain(self, text: str) -> None:
        """Write text as it is. A reader that went away is none of our troubles: the stop comes by signal."""
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (BrokenPipeError, OSError):
            self._stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
