"""One supervised child: its process, its output by lines, and how often it has died."""

import os
import signal
import subprocess
import time
from collections import deque
from pathlib import Path

from webapp.servers import process
from webapp.supervisor.console import Console
from webapp.supervisor.services import Service

ROOT = Path(__file__).resolve().parents[2]
MOST_DEATHS = 5  # in a row, each within STEADY_S of its start
STEADY_S = 60.0
LONGEST_PAUSE_S = 8.0
LAST_LINES = 8
BACKLOG = 2048  # connections that wait for the web process


class Child:
    """A service and, while it runs, its process."""

    def __init__(self, service: Service, console: Console) -> None:
        self.service = service
        self.deaths = 0
        self.restart_at: float | None = None
        self.last = deque[str](maxlen=LAST_LINES)
        self._console = console
        self._rest = b""
        self._started = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; SIGTERM reaches it if this process dies in whatever way."""
        self._started = time.monotonic()
        self.restart_at = None
        listening = self.service.listening
        if listening:
            listening.listen(BACKLOG)
        self.process = process.spawn(
            self.service.argv,
            death_signal=signal.SIGTERM,
            input=listening.fileno() if listening else subprocess.DEVNULL,
            output=subprocess.PIPE,
            env=self.service.env,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def leave(self) -> None:
        """It is not started again: nobody waits for it any more."""
        if self.service.listening:
            self.service.listening.close()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pump(self) -> bool:
        """Print what it has written since the last time; return whether there was anything."""
        if self.process is None or self.process.stdout is None:
            return False
        any_read = False
        while part := self._read():
            *lines, self._rest = (self._rest + part).split(b"\n")
            for line in lines:
                self._say(line)
            any_read = True
        return any_read

    def buried(self) -> int:
        """Take leave of a process that ended: print the rest, return its exit status, plan its restart."""
        assert self.process is not None
        self.pump()
        if self._rest:
            self._say(self._rest)
            self._rest = b""
        status = self.process.returncode
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        steady = time.monotonic() - self._started > STEADY_S
        self.deaths = 1 if steady else self.deaths + 1
        self.restart_at = time.monotonic() + (0.0 if steady else pause_s(self.deaths))
        return status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it; SIGKILL to its whole group, for it can no longer clean up."""
        if not self.alive:
            return
        assert self.process is not None
        if number == signal.SIGKILL:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.send_signal(number)

    def _read(self) -> bytes:
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            return os.read(self.process.stdout.fileno(), 65536)
        except (BlockingIOError, ValueError):
            return b""

    def _say(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self.last.append(text)
            self._console.line(self.service.name, text)


def pause_s(deaths: int) -> float:
    """Seconds before the next start, after so many deaths in a row."""
    return float(min(LONGEST_PAUSE_S, 0.5 * 2 ** (min(deaths, 10) - 1)))


def in_words(status: int) -> str:
    """An exit status as people say it."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
