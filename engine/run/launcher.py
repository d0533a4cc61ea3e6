"""Starting, supervising and stopping the ranks of one machine, without importing torch.

A small host process (engine.run.host) imports torch once and forks one process per rank. As a rule this
process holds its pipes (`PipedHost`): whatever ends this process, ``kill -9`` included, the host sees its
standard input close and takes the ranks with it.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable

from engine.job.events.base import OfRun
from engine.job.events.event import Event, from_json
from engine.job.events.training import Rank, RankState
from engine.job.launch import LaunchSpec
from engine.run.host_process import HostProcess, LetGo, PipedHost

log = logging.getLogger(__name__)


def _piped(spec: LaunchSpec) -> HostProcess:
    return PipedHost(spec.log_dir, spec.to_json().encode())


class RankGroup:
    """The ranks of one run on this machine.

    Parameters
    ----------
    on_event : called from one thread with each event (docs/events.md). Ranks wait while it
        blocks for long, so it should hand over and return. What it raises is logged.
    open_host : starts the host of a spec, or finds it at work.
    ended : ranks whose end has been told before, where the host was at work already.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        on_event: Callable[[Event], None],
        open_host: Callable[[LaunchSpec], HostProcess] = _piped,
        *,
        ended: Iterable[int] = (),
    ) -> None:
        self.spec = spec
        self._on_event = on_event
        self._open_host = open_host
        self._host: HostProcess | None = None
        self._reader: threading.Thread | None = None
        self._ended = set(ended)
        self._reported = False  # whether the host has said anything: before that it has started no rank
        self._stopped = False

    def start(self) -> None:
        """Start the host process, which starts the ranks; returns at once. Raises OSError."""
        self._host = self._open_host(self.spec)
        self._reader = threading.Thread(target=self._read, name=f"ranks-{self.spec.run}", daemon=True)
        self._reader.start()

    def running(self) -> bool:
        """Whether ranks, or the process that hosts them, are still there."""
        return self._host is not None and (not self._host.ended or self._reading())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all ranks are gone and their events delivered; False if `timeout_s` passed first."""
        if self._reader is None or self._host is None:
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # In short joins, so that Ctrl-C reaches a main thread that waits here.
        while self._reading():
            left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
            if left <= 0:
                return False
            self._reader.join(left)
        self._host.wait()
        return True

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask the ranks to end (SIGTERM), kill what is left after `grace_s`, and return when all are gone."""
        if self._host is None:
            return
        self._stopped = True
        if not self._reported:
            self._host.kill()  # it imports for seconds and reads no command; nothing is lost with it
        self._command(f"stop {grace_s}")
        if not self.wait(grace_s + 5.0):
            self._host.kill()
            self.wait(5.0)

    def stop_at_boundary(self) -> None:
        """Ask the run to end after a whole iteration; returns at once. Only the first rank's machine can.

        That rank names the iteration (a `boundary` event), and all ranks finish it and report as usual.
        """
        if self._host is not None:
            self._command("boundary")

    def cut(self, a: str, b: str, seconds: float) -> None:
        """Cut the network between two data centres for ranks here, emulated or not; for drills."""
        if self._host is not None:
            self._command("cut " + json.dumps([a, b, seconds]))

    def _command(self, line: str) -> None:
        assert self._host is not None
        self._host.send(line.encode())

    def _reading(self) -> bool:
        return self._reader is not None and self._reader.is_alive()

    def _read(self) -> None:
        assert self._host is not None
        try:
            for line in self._host.lines():
                self._take(line)
        except LetGo:
            return
        code = self._host.wait()
        if code:
            self._host.kill()
        for rank in self.spec.local:
            if rank not in self._ended:
                self._deliver(self._lost(rank, code))

    def _take(self, line: bytes) -> None:
        event = self._decoded(line)
        if event is None:
            return
        self._reported = True
        if isinstance(event, Rank) and event.state.is_end:
            self._ended.add(event.rank)
        self._deliver(event)

    def _decoded(self, line: bytes) -> Event | None:
        try:
            event = from_json(line)
            if isinstance(event, OfRun):
                return event.of(self.spec.run, self.spec.generation, self.spec.start)
            why = f"a {event.kind} event is of a node, not of a run"
        except ValueError as error:
            why = str(error)
        log.warning("host of run %s wrote an invalid event (%s): %r", self.spec.run, why, line[:200])
        return None

    def _lost(self, rank: int, code: int) -> Event:
        """The event of a rank whose host ended without saying what became of it."""
        state, detail = RankState.STOPPED, "stopped before it started"
        if not self._stopped or self._reported:
            state = RankState.FAILED
            detail = f"the host process of the ranks ended with status {code}: {self._last_host_line()}"
        gone = state is RankState.FAILED and code != 0
        event = Rank(rank=rank, state=state, detail=detail, exit_code=code, gone=gone, t=time.time())
        return event.of(self.spec.run, self.spec.generation, self.spec.start)

    def _last_host_line(self) -> str:
        with open(os.path.join(self.spec.log_dir, "host.log"), "rb") as host_log:
            lines = host_log.read()[-4096:].split(b"\n")
        return next((line.decode(errors="replace") for line in reversed(lines) if line.strip()), "no output")

    def _deliver(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:
            log.exception("handler of a %s event of run %s failed", event.kind, self.spec.run)
