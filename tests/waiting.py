"""Waiting for what other threads and processes do. Only a hang reaches the limit; slowness does not."""

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

LIMIT_S = 120.0  # well within pytest's own limit of a test, which tells less of what was waited for

T = TypeVar("T")


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nothing but its parent to ask."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def until(
    met: Callable[[], T], what: str | Callable[[], object] = "the condition", *, every_s: float = 0.01
) -> T:
    """What `met` returns as soon as that is true.

    Raises
    ------
    AssertionError
        It is still false after LIMIT_S seconds; `what` (or what it returns then) is named.
    """
    end = time.monotonic() + LIMIT_S
    while not (result := met()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {LIMIT_S:g} s: {what() if callable(what) else what}")
        time.sleep(every_s)
    return result
