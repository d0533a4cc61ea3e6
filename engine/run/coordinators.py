"""The prefill coordinators of a host: one for each data centre whose first rank it has, restarted at its end.

Where the run's ranks begin another attempt, so do they: what they had accepted went with the ranks, and they
say so.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from engine.job.events.base import BaseEvent, Emit
from engine.job.events.event import from_json
from engine.job.events.prefill import CoordinatorEvent, CoordinatorState
from engine.job.prefill.adjacent_stages import gpus_of
from engine.run.coordinator_process import CoordinatorStart, run, state_event, where
from engine.run.part import GroupStart, HostPart
from engine.run.rank_processes import Children

AGAIN_S = 0.1  # from its end to the next one's start
MOST_AGAIN_S = 30.0  # where it ends again and again
LONG_S = 10.0  # one that lived so long was well
END_S = 2.0
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class _Coordinator:
    start: CoordinatorStart
    pid: int
    read_fd: int
    since: float
    open: tuple[str, int] | None = None
    rest: bytes = b""
    killed_at: float | None = None  # told to end; when it is killed


@dataclass(slots=True, kw_only=True)
class PrefillCoordinators(HostPart):
    """Starts and watches them, in the host's own loop.

    emit : takes their events.
    life : the host's pipe, its read and write ends: a coordinator ends when no process holds the latter.
    children : of the host; a coordinator is entered when it is forked.
    """

    selector: selectors.BaseSelector
    emit: Emit
    life: tuple[int, int]
    children: Children
    _starts: dict[int, CoordinatorStart] = field(default_factory=dict)  # by data centre
    _coordinators: dict[int, _Coordinator] = field(default_factory=dict)  # by process
    _due: dict[int, float] = field(default_factory=dict)  # by data centre
    _pauses: dict[int, float] = field(default_factory=dict)
    _stopped: bool = False
    _closing: bool = False

    def on_start(self, group: GroupStart) -> None:
        """Start those whose data centre has its first GPU here; any there were end first."""
        spec, schedule, port = group.spec, group.schedule, group.port
        assert schedule is not None
        firsts = {me.dc: gpus_of(spec, me.dc)[0] for me in spec.ranks}
        here = {dc: first for dc, first in firsts.items() if first.rank in spec.local}
        self._starts = {
            dc: CoordinatorStart(spec=spec, schedule=schedule, first=first, port=port)
            for dc, first in here.items()
        }
        self._due.clear()
        for pid, coordinator in self._coordinators.items():
            if coordinator.killed_at is None:
                coordinator.killed_at = time.monotonic() + END_S
                os.kill(pid, signal.SIGTERM)
        for dc in set(here) - {coordinator.start.first.dc for coordinator in self._coordinators.values()}:
            self._fork(dc)

    def deadline(self) -> float | None:
        """When `tick` has something to do, in monotonic seconds."""
        if self._stopped:
            return None
        kills = [
            coordinator.killed_at
            for coordinator in self._coordinators.values()
            if coordinator.killed_at is not None
        ]
        return min([*self._due.values(), *kills], default=None)

    def tick(self) -> None:
        """Start those again whose time has come, and kill those that did not end."""
        if self._stopped:
            return
        now = time.monotonic()
        for dc in [dc for dc, at in self._due.items() if at <= now]:
            del self._due[dc]
            self._fork(dc)
        for pid, coordinator in self._coordinators.items():
            if coordinator.killed_at is not None and coordinator.killed_at <= now:
                coordinator.killed_at = None
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Start none again: `close` ends them once the ranks are gone."""
        self._stopped = True

    def _on_end(self, pid: int, status: int) -> None:
        coordinator = self._coordinators.pop(pid)
        self._hear(coordinator)
        self.selector.unregister(coordinator.read_fd)
        os.close(coordinator.read_fd)
        if coordinator.open is not None:
            self.emit(
                state_event(coordinator.start, CoordinatorState.CLOSED, _why(status), *coordinator.open)
            )
        self._follow(coordinator)

    def close(self) -> None:
        """End them all: they tell their gateways first."""
        self._closing = True
        for pid in self._coordinators:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while self._coordinators:
            for pid in list(self._coordinators):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                ended_pid, status = os.waitpid(pid, 0 if time.monotonic() > deadline else os.WNOHANG)
                if ended_pid:
                    self.children.pop(pid)(status)
            time.sleep(0.01)

    def _follow(self, coordinator: _Coordinator) -> None:
        """Start another one in its place, if there is one: at once where the run's ranks begin again."""
        now, dc = time.monotonic(), coordinator.start.first.dc
        if self._closing or dc not in self._starts:
            return
        if coordinator.start is not self._starts[dc]:
            self._fork(dc)
            return
        pause = AGAIN_S if now - coordinator.since > LONG_S else self._pauses.get(dc, AGAIN_S)
        self._pauses[dc] = min(2 * pause, MOST_AGAIN_S)
        self._due[dc] = now + pause

    def _fork(self, dc: int) -> None:
        read_fd, write_fd = os.pipe()
        start = self._starts[dc]
        pid = os.fork()
        if pid == 0:
            os.close(self.life[1])
            _become_coordinator(start, events_fd=write_fd, life_fd=self.life[0])
        os.close(write_fd)
        os.set_blocking(read_fd, False)
        coordinator = _Coordinator(start, pid, read_fd, time.monotonic())
        self._coordinators[pid] = coordinator
        self.children[pid] = partial(self._on_end, pid)
        self.selector.register(read_fd, selectors.EVENT_READ, lambda: self._hear(coordinator))

    def _hear(self, coordinator: _Coordinator) -> None:
        while True:
            try:
                data = os.read(coordinator.read_fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, coordinator.rest = (coordinator.rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):  # one that is killed may leave half a line
                    self._handle(coordinator, from_json(line))

    def _handle(self, coordinator: _Coordinator, event: BaseEvent) -> None:
        if isinstance(event, CoordinatorEvent):
            coordinator.open = (event.host, event.port) if event.state is CoordinatorState.OPEN else None
        self.emit(event)


def _why(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"killed by {signal.Signals(-code).name}; it starts again"
    return f"ended with status {code}; it starts again"


def _become_coordinator(start: CoordinatorStart, *, events_fd: int, life_fd: int) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    log = os.open(
        os.path.join(start.spec.log_dir, f"prefill-coordinator-{start.first.dc}.log"),
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        0o600,
    )
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        run(start, events_fd=events_fd, life_fd=life_fd)
    except BaseException as error:
        print(f"the prefill coordinator ended: {where(error)}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)
    os._exit(0)
