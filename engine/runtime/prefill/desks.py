"""The desks that a host keeps: one for each data centre whose first rank it has, started anew at its end."""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from engine.runtime.launch import LaunchSpec, RankAssignment
from engine.runtime.prefill.desk_process import DeskStart, run, state_event, where
from engine.schedule import Schedule

AGAIN_S = 0.1  # from its end to the next one's start
MOST_AGAIN_S = 30.0  # where it ends again and again
LONG_S = 10.0  # one that lived so long was well
END_S = 2.0
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class _Desk:
    start: DeskStart
    pid: int
    read_fd: int
    since: float
    open: tuple[str, int] | None = None
    rest: bytes = b""


@dataclass(slots=True, kw_only=True)
class Desks:
    """Starts and watches them, in the host's own loop.

    say : is given their events.  port : of the rendezvous store.
    life : the host's pipe, its read and write ends: a desk ends when nobody has the latter any more.
    """

    spec: LaunchSpec
    schedule: Schedule
    selector: selectors.BaseSelector
    say: Callable[[dict[str, Any]], None]
    port: int
    life: tuple[int, int]
    _desks: dict[int, _Desk] = field(default_factory=dict)
    _due: list[tuple[float, RankAssignment]] = field(default_factory=list)
    _pauses: dict[int, float] = field(default_factory=dict)
    _closing: bool = False

    def start(self) -> None:
        """Start those whose data centre has its first rank here."""
        if self.spec.job.prefill is None:
            return
        firsts: dict[int, RankAssignment] = {}
        for me in sorted(self.spec.ranks, key=lambda me: me.rank):
            firsts.setdefault(me.dc, me)
        for first in firsts.values():
            if first.rank in self.spec.local:
                self._fork(first)

    def deadline(self) -> float | None:
        """When `tick` has something to do, in monotonic seconds."""
        return min((at for at, _ in self._due), default=None)

    def tick(self) -> None:
        """Start those anew whose time has come."""
        now = time.monotonic()
        for entry in [entry for entry in self._due if entry[0] <= now]:
            self._due.remove(entry)
            self._fork(entry[1])

    def reaped(self, pid: int, status: int) -> bool:
        """A child ended; whether it was a desk."""
        desk = self._desks.pop(pid, None)
        if desk is None:
            return False
        self._hear(desk)
        self.selector.unregister(desk.read_fd)
        os.close(desk.read_fd)
        if desk.open is not None:
            self.say(state_event(desk.start, "closed", _why(status), *desk.open))
        if not self._closing:
            self._again(desk)
        return True

    def close(self) -> None:
        """End them all: they tell their gateways first."""
        self._closing = True
        for pid in self._desks:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while self._desks:
            for pid in list(self._desks):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                found, status = os.waitpid(pid, 0 if time.monotonic() > deadline else os.WNOHANG)
                if found:
                    self.reaped(pid, status)
            time.sleep(0.01)

    def _again(self, desk: _Desk) -> None:
        now, dc = time.monotonic(), desk.start.first.dc
        pause = AGAIN_S if now - desk.since > LONG_S else self._pauses.get(dc, AGAIN_S)
        self._pauses[dc] = min(2 * pause, MOST_AGAIN_S)
        self._due.append((now + pause, desk.start.first))

    def _fork(self, first: RankAssignment) -> None:
        read_fd, write_fd = os.pipe()
        start = DeskStart(
            spec=self.spec, schedule=self.schedule, first=first, port=self.port, events_fd=write_fd,
            life_fd=self.life[0],
        )  # fmt: skip
        pid = os.fork()
        if pid == 0:
            os.close(self.life[1])
            _become_desk(start)
        os.close(write_fd)
        os.set_blocking(read_fd, False)
        desk = _Desk(start, pid, read_fd, time.monotonic())
        self._desks[pid] = desk
        self.selector.register(read_fd, selectors.EVENT_READ, lambda: self._hear(desk))

    def _hear(self, desk: _Desk) -> None:
        while True:
            try:
                data = os.read(desk.read_fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, desk.rest = (desk.rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):  # one that is killed may leave half a line
                    self._heed(desk, json.loads(line))

    def _heed(self, desk: _Desk, event: dict[str, Any]) -> None:
        if event["kind"] == "desk":
            desk.open = (event["host"], event["port"]) if event["state"] == "open" else None
        self.say(event)


def _why(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"killed by {signal.Signals(-code).name}; it is started anew"
    return f"ended with status {code}; it is started anew"


def _become_desk(start: DeskStart) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    log = os.open(
        os.path.join(start.spec.log_dir, f"desk-{start.first.dc}.log"),
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        0o600,
    )
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        run(start)
    except BaseException as error:
        print(f"the desk ended: {where(error)}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)
    os._exit(0)
