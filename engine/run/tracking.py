"""The trackers of a run, on the machine of its first rank: fed by the host, in a process of their own.

Nothing here waits for a tracker while the run trains, and one that fails does not end the run: the log and
the result say so.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from engine.job.events.base import BaseEvent
from engine.job.events.training import Log, Step, Validation
from engine.job.launch import LaunchSpec
from engine.private import private
from engine.run.local_ranks import emit
from engine.run.part import HostPart
from engine.run.rank_processes import Children, RankProcesses

AGAIN_S = 0.1  # until what a tracker did not take is offered again
# For trackers to write what they hold once the run is over; a busy machine imports them for long.
CLOSE_S = 120.0
STOPPED_S = 4.0  # the same for a run that is stopped: whoever stops it waits for the host
LOG = "tracking.log"


class Tracking(HostPart):
    """Hands the figures of the run to its trackers.

    Parameters
    ----------
    children : of the host, which reaps the process.
    result : fields of the run's result; gets `tracking` {folders, failure}.
    """

    def __init__(
        self, spec: LaunchSpec, ranks: RankProcesses, children: Children, result: dict[str, Any]
    ) -> None:
        self._spec, self._ranks, self._children, self._result = spec, ranks, children, result
        self._folders = spec.job.tracking.folders
        self._log = os.path.join(spec.log_dir, LOG)
        with open(self._log, "ab", opener=private) as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "engine.run.tracking_process"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        assert process.stdin is not None
        self._pid, self._input = process.pid, process.stdin
        os.set_blocking(self._input.fileno(), False)
        children[self._pid] = self._on_end
        first = {"folders": self._folders, "name": spec.run, "document": spec.job.to_document()}
        self._unsent = bytearray(json.dumps(first).encode() + b"\n")
        self._status: int | None = None
        self._send()

    def deadline(self) -> float | None:
        """When what was not taken is offered again."""
        return time.monotonic() + AGAIN_S if self._unsent and self._status is None else None

    def tick(self) -> None:
        """Offer again what was not taken."""
        self._send()

    def on_told(self, event: BaseEvent) -> None:
        """Hand on the figures of a step, or of a validation."""
        if isinstance(event, Step | Validation):
            self._unsent += event.to_json() + b"\n"
            self._send()

    def close(self) -> None:
        """Say how the run ended, and wait for the trackers to write it."""
        ending = "stopped" if self._ranks.stopping else "finished" if self._ranks.all_well() else "failed"
        self._unsent += ending.encode() + b"\n"
        limit_s = STOPPED_S if self._ranks.stopping else CLOSE_S
        deadline = time.monotonic() + limit_s
        while self._status is None and time.monotonic() < deadline:
            self._send()
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._children.pop(pid)(status)
            else:
                time.sleep(0.01)
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            failure: str | None = f"they did not end within {limit_s:g} s"
        else:
            failure = self._why(self._status) if self._status else None
        self._result["tracking"] = {"folders": self._folders, "failure": failure}

    def _send(self) -> None:
        while self._unsent and self._status is None:
            try:
                del self._unsent[: os.write(self._input.fileno(), self._unsent[:65536])]
            except BlockingIOError:
                return
            except BrokenPipeError:  # its end is told of when it is reaped
                self._unsent.clear()

    def _on_end(self, status: int) -> None:
        self._status = os.waitstatus_to_exitcode(status)
        if self._status:
            line = f"Trackers write no more: {self._why(self._status)}"
            emit(Log(rank=self._spec.first_rank, line=line, t=time.time()))

    def _why(self, status: int) -> str:
        with open(self._log, "rb") as log:
            lines = log.read()[-4096:].decode(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        return f"status {status}: {last} ({LOG})"
