"""Prefill's threads and processes give way to training's: on a CPU that both use, training must not wait.

Linux alone has the means; elsewhere, and where they are refused, all threads are equal. Where it groups by
session (autogroup) they count within one, so hosts of ranks do not lead sessions.
"""

import os
import sys
import threading
from functools import cache

_IS_LINUX = sys.platform == "linux"


def yield_wakeups() -> None:
    """From now on this process takes no CPU from who runs there just because it has something to do."""
    if _IS_LINUX:
        _schedule(0, os.SCHED_BATCH)


def give_way(thread: int) -> bool:
    """A thread of this process, by its native id, runs where nobody else wants the CPU, until `take_part`.

    False, and nothing is changed, where it could not be taken back: a chunk that training waits for must not
    wait for an idle CPU. Without CAP_SYS_NICE (a container's default) or an `ulimit -e` of 20 it cannot.
    """
    return _IS_LINUX and _can_take_back() and _schedule(thread, os.SCHED_IDLE)


def take_part(thread: int) -> None:
    """A thread that gave way is like all others again."""
    if _IS_LINUX:
        _schedule(thread, os.SCHED_OTHER)


def _schedule(thread: int, policy: int) -> bool:
    try:
        os.sched_setscheduler(thread, policy, os.sched_param(0))
    except OSError:
        return False
    return True


@cache
def _can_take_back() -> bool:
    """Tried on a thread that ends with it."""
    taken_back: list[bool] = []

    def attempt() -> None:
        taken_back.append(_schedule(0, os.SCHED_IDLE) and _schedule(0, os.SCHED_OTHER))

    trial = threading.Thread(target=attempt, name="trial")
    trial.start()
    trial.join()
    return taken_back[0]
