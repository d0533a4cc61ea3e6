"""The process that hosts the ranks of one machine, as its owner sees it; nothing but the standard library."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from engine.private import private

# A tensor of some MB is a mapping of its own, new each time: in pages of 2 MB it costs one page fault instead
# of 512. torch reads this when it is loaded.
_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}


class LetGo(Exception):
    """The host goes on without this process, which is told nothing more of it."""


class HostProcess(Protocol):
    """A host that has been started, or what stands between it and its owner."""

    def send(self, line: bytes) -> None:
        """Send a command, a line without its end. Nothing happens where the host has ended."""

    def lines(self) -> Iterator[bytes]:
        """What the host says, until it has ended; the next line is asked for when one has been dealt with.

        Raises LetGo where it has not ended, and goes on without this process.
        """
        ...

    def wait(self) -> int:
        """Return the host's exit status, when it has ended."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the host has ended."""
        ...

    def kill(self) -> None:
        """Kill the host and its ranks at once."""


def spawn(log_dir: str | Path) -> "subprocess.Popen[bytes]":
    """Start a host whose standard error goes to host.log in `log_dir`, which is made. Raises OSError.

    It lives in a process group of its own, so that Ctrl-C does not reach the ranks.
    """
    os.makedirs(log_dir, exist_ok=True)
    with open(os.path.join(log_dir, "host.log"), "ab", opener=private) as host_log:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "engine.run.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=host_log,
            env={**_HUGE_PAGES, **os.environ},
            process_group=0,  # not a session: prefill of one host gives way to training of another
        )


def kill(host: "subprocess.Popen[bytes]") -> None:
    """Kill a host and its ranks, which are in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(host.pid, signal.SIGKILL)


class PipedHost:
    """A host whose pipes this process holds: it ends with this process, and its ranks with it."""

    def __init__(self, log_dir: str | Path, spec: bytes) -> None:
        self.process = spawn(log_dir)
        self._commands = threading.Lock()
        self.send(spec)

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with self._commands, contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def lines(self) -> Iterator[bytes]:
        assert self.process.stdout is not None
        yield from self.process.stdout

    def wait(self) -> int:
        return self.process.wait()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        kill(self.process)
