"""The log files of children: opened to append, kept small, and their last line for error messages."""

from pathlib import Path
from typing import IO

LARGEST = 8 * 1024 * 1024


def open_log(path: Path) -> IO[bytes]:
    """Open a log to append to; one past 8 MB becomes ``.1`` first (the one before that is dropped)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LARGEST:
        path.replace(path.with_name(path.name + ".1"))
    path.touch(0o600)
    return path.open("ab")


def last_line(path: Path) -> str:
    """Return the last line of a log that says something: an error if there is one near the end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = [
                line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()
            ]
    except OSError:
        return "no log"
    telling = [
        line
        for line in lines[-6:]
        if "FATAL" in line or "PANIC" in line or "rror" in line or "No space" in line
    ]
    return (telling or lines or ["no message"])[-1]
