"""Exit status 0 where this container's agent lives: it holds the lock of its node's folder for as long."""

import fcntl
import os
import sys
from pathlib import Path


def main() -> int:
    """Try the lock of each node's folder under MERIDIAN_VAR."""
    folders = sorted((Path(os.environ.get("MERIDIAN_VAR") or "var") / "agents").glob("*/lock"))
    if not folders:
        sys.stdout.write("no agent has started yet\n")
        return 1
    if any(_held(path) for path in folders):
        return 0
    sys.stdout.write("no agent holds its lock\n")
    return 1


def _held(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


if __name__ == "__main__":
    sys.exit(main())
