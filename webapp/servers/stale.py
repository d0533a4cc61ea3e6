"""Making way for a server whose predecessor may still live on the same data."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from webapp.servers import process
from webapp.servers.errors import ServersError

ENDS_S = 20.0
SHOWS_ITSELF_S = 10.0


def end_stale(pid_file: Path, is_ours: Callable[[str], bool], number: signal.Signals, name: str) -> None:
    """Stop the server that `pid_file` names, if it still lives, and remove the file.

    For a start on data whose lock this process holds, after whatever ended the last server: an orphan, or one
    that is just ending, is waited for, and killed where it hangs: both servers keep what they acknowledged.
    The number may belong to another process by now.

    Parameters
    ----------
    is_ours : whether a command line is that of a server on this data.
    number : what asks it to end in order.

    Raises
    ------
    ServersError
        The orphan cannot be killed.
    """
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + SHOWS_ITSELF_S
    interrupted = killed = False
    while process.alive(pid):
        command = process.command_of(pid)
        if command and not is_ours(command):
            break
        if command and not interrupted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            interrupted = True
            deadline = time.monotonic() + ENDS_S
        if time.monotonic() > deadline:
            if not command:
                break  # a zombie that nobody reaps holds no data
            if not killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                killed = True
                deadline = time.monotonic() + ENDS_S
                continue
            raise ServersError(f"process {pid} is an orphaned {name} on this data and does not end: kill it")
        time.sleep(0.1)
    pid_file.unlink(missing_ok=True)
