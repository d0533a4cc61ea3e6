"""Starting a child that does not outlive this process, as another user where wanted."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from webapp.servers.errors import ServersError
from webapp.servers.places import Account

_PR_SET_PDEATHSIG = 1
_LINUX = sys.platform.startswith("linux")
_GUARD = Path(__file__).with_name("guard.py")  # by path: the child starts in another folder
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


def spawn(
    argv: Sequence[str | Path],
    *,
    death_signal: signal.Signals,
    output: int | IO[bytes],
    input: int = subprocess.DEVNULL,
    account: Account | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """Start `argv` in a group of its own; `death_signal` reaches it when this process dies, however it dies.

    Linux sends the signal when the *thread* that forked ends, so only the main thread may call this.
    Elsewhere a small guard process stands between (`webapp.servers.guard`).

    Parameters
    ----------
    output : a file, or subprocess.PIPE, for standard output and error together.
    input : its standard input, as a descriptor.
    account : who it runs as; None for the user of this process.
    umask : of the child; -1 leaves it.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ServersError(
            "children must be started from the main thread: they die with the thread that forked them"
        )
    command = [str(part) for part in argv]
    if not _LINUX:
        command = [
            sys.executable,
            str(_GUARD),
            death_signal.name,
            str(os.getpid()),
            *command,
        ]
    return subprocess.Popen(
        command,
        stdin=input,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Ctrl-C reaches this process alone, which stops them in order. Not a session: Linux shares the CPU
        # out among those first (autogroup), and what gives way to training would do so within its own only.
        process_group=0,
        cwd=cwd,
        env=None if env is None else dict(env),
        umask=umask,
        preexec_fn=_tie_to_parent(death_signal) if _LINUX else None,
        user=None if account is None else account.uid,
        group=None if account is None else account.gid,
        extra_groups=None if account is None else [],
    )


def stop(child: subprocess.Popen[bytes], *steps: tuple[signal.Signals, float]) -> None:
    """Send each signal in turn, with seconds to wait after each, then SIGKILL; return once it is gone."""
    for number, patience_s in (*steps, (signal.SIGKILL, 5.0)):
        if child.poll() is not None:
            return
        child.send_signal(number)
        try:
            child.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            continue


def alive(pid: int) -> bool:
    """Return whether a process with this id exists, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def command_of(pid: int) -> str:
    """Return the command line of a process, or '' where it is gone or a zombie."""
    if _LINUX:
        try:
            return (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
                .strip()
            )
        except OSError:
            return ""
    process = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return process.stdout.strip()


def _tie_to_parent(death_signal: signal.Signals) -> Callable[[], None]:
    parent = os.getpid()

    def tie() -> None:
        # After the change of user, which would clear it, and before exec, which keeps it.
        assert _libc is not None
        if _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
            os._exit(127)
        if os.getppid() != parent:  # the parent died in between and the signal will never come
            os._exit(127)

    return tie
