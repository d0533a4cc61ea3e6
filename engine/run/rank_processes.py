"""The rank processes of one machine: forks them, reads what they print and their events, and stops them."""

import contextlib
import mmap
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.job.events.base import BaseEvent
from engine.job.events.event import from_json
from engine.job.events.training import Log, Rank, RankState
from engine.job.launch import LaunchSpec, RankAssignment
from engine.private import private
from engine.run.host_start import become_rank
from engine.run.local_ranks import LocalRank, emit, emit_line
from engine.run.part import GroupStart, HostPart
from engine.train.corpus import Corpus
from engine.train.start import Start

LONGEST_LINE = 4096
Children = dict[int, Callable[[int], None]]  # by process: takes the status with which it ended


@dataclass(slots=True)
class _Pipe:
    owner: LocalRank
    is_events: bool
    rest: bytes = b""


class RankProcesses:
    """The ranks of one machine and what became of them.

    Parameters
    ----------
    children : of this process; a rank is entered when it is forked.
    began : Unix time at which this process began.

    Attributes
    ----------
    corpora : what ranks read, by name of their data centre.
    by_pid : those that have been started, the ended ones too.
    stopping : whether they have been told to end; none is started any more.
    stop_flag : one byte shared with the ranks, which are forks of this process (a signal could come before
        its handler): set to end the run after a whole iteration.
    life : the read and write ends of a pipe; who has the former knows by it when this process is gone.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        selector: selectors.BaseSelector,
        children: Children,
        *,
        corpora: dict[str, Corpus],
        began: float,
    ) -> None:
        self.local, self._log_dir, self._first_rank = spec.local, spec.log_dir, spec.first_rank
        self._selector, self._children = selector, children
        self.corpora, self._began = corpora, began
        self.parts: Sequence[HostPart] = ()
        self.by_pid: dict[int, LocalRank] = {}
        self.stopping = False
        self.stop_flag = mmap.mmap(-1, 1)
        self.life = os.pipe()
        self._kill_at: float | None = None
        self._ended: set[int] = set()

    def start(self, group: GroupStart) -> None:
        """Fork the ranks of a group."""
        for me in group.ranks:
            self._fork(group, me)
        for part in self.parts:
            part.on_start(group)

    def stop(self, grace_s: float) -> None:
        """Ask the ranks to end, and kill what is left after `grace_s`; at once where that is 0."""
        self.stopping = True
        for part in self.parts:
            part.stop()
        self.signal_all(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        self._kill_at = time.monotonic() + grace_s

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to every rank that lives."""
        for rank in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, number)

    def deadline(self) -> float | None:
        """When `tick` is to be called at the latest (time.monotonic())."""
        return self._kill_at

    def tick(self) -> None:
        """Kill those that were told to end and had their time."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self.signal_all(signal.SIGKILL)

    def living(self) -> list[LocalRank]:
        """Those whose process has not ended."""
        return [rank for rank in self.by_pid.values() if rank.code is None]

    def ended(self) -> list[LocalRank]:
        """Those whose process has ended."""
        return [rank for rank in self.by_pid.values() if rank.code is not None]

    def all_gone(self) -> bool:
        """Whether no rank lives, and everything that they said has been read."""
        return not self.living() and not any(rank.open_pipes for rank in self.by_pid.values())

    def all_well(self) -> bool:
        """Whether every rank has ended with status 0."""
        return all(rank.code == 0 for rank in self.by_pid.values())

    def forget(self) -> None:
        """Forget the ranks, which are gone."""
        for rank in self.by_pid.values():
            rank.log.close()
        self.by_pid.clear()

    def tell(self, event: BaseEvent) -> None:
        """Tell the host's owner, and all parts, an event of training that a part has taken or made."""
        self._hand_round(event)
        emit(event)

    def emit_state(self, rank: LocalRank, state: RankState, detail: str = "") -> None:
        """Say the state of a rank."""
        rank_event = Rank(
            rank=rank.me.rank, state=state, detail=detail, exit_code=rank.code, pid=rank.pid, t=time.time()
        )
        emit(rank_event)

    def emit_end(self, rank: LocalRank, state: RankState, detail: str) -> None:
        """Say how a rank ended, unless that has been said of its number before."""
        if rank.me.rank not in self._ended:
            self._ended.add(rank.me.rank)
            self.emit_state(rank, state, detail)

    def emit_end_of(self, rank: int, state: RankState, detail: str) -> None:
        """The same of a rank's number that has no process here at the moment."""
        if rank not in self._ended:
            self._ended.add(rank)
            emit(Rank(rank=rank, state=state, detail=detail, t=time.time()))

    def without_end(self) -> list[int]:
        """The numbers of the ranks here of whose end nothing has been said."""
        return sorted(set(self.local) - self._ended)

    def _fork(self, group: GroupStart, me: RankAssignment) -> None:
        out_read, out_write = os.pipe()
        events_read, events_write = os.pipe()
        start = self._start_of(group, me, events_write)
        pid = os.fork()
        if pid == 0:
            for fd in (out_read, events_read, self.life[1], *self._of_host_alone()):
                os.close(fd)
            become_rank(start, out_write, self.life[0])
        os.close(out_write)
        os.close(events_write)
        path = os.path.join(self._log_dir, f"rank-{me.rank}.log")
        log = open(path, "ab", buffering=0, opener=private)  # noqa: SIM115
        rank = self.by_pid[pid] = LocalRank(me, pid, log)
        self._children[pid] = partial(self._on_end, rank)
        for fd, is_events in ((out_read, False), (events_read, True)):
            read = partial(self._read, fd, _Pipe(rank, is_events))
            self._selector.register(fd, selectors.EVENT_READ, read)
        self.emit_state(rank, RankState.STARTING)

    def _start_of(self, group: GroupStart, me: RankAssignment, events_fd: int) -> Start:
        store = group.store if me.rank == self._first_rank else None
        start = Start(
            spec=group.spec,
            me=me,
            schedule=group.schedule,
            plan=group.plan,
            corpus=self.corpora[me.dc_name],
            port=group.port,
            listen_fd=store.fileno() if store is not None else None,
            events_fd=events_fd,
            began=self._began,
            stop_flag=self.stop_flag,
        )
        for part in self.parts:
            start = part.equip(start)
        return start

    def _of_host_alone(self) -> list[int]:
        """Descriptors that no rank is to hold: all that the host waits for, but for standard input."""
        return [key.fd for key in self._selector.get_map().values() if key.fd > 2]

    def _read(self, fd: int, pipe: _Pipe) -> None:
        data = os.read(fd, 1 << 20)
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            pipe.owner.open_pipes -= 1
            if pipe.rest:
                self._on_line(pipe, pipe.rest)
            return
        *lines, pipe.rest = (pipe.rest + data).split(b"\n")
        for line in lines:
            self._on_line(pipe, line)

    def _on_line(self, pipe: _Pipe, line: bytes) -> None:
        if not pipe.is_events:
            self._log(pipe.owner, line)
            return
        with contextlib.suppress(ValueError):  # a rank that is killed may leave half a line
            event = from_json(line)
            if not any(part.takes_event(event) for part in self.parts):
                self._hand_round(event)
                emit_line(line)

    def _hand_round(self, event: BaseEvent) -> None:
        for part in self.parts:
            part.on_told(event)

    def _log(self, rank: LocalRank, line: bytes) -> None:
        with contextlib.suppress(OSError):  # a disk that is full costs the line, not the run
            rank.log.write(line + b"\n")
        text = line[:LONGEST_LINE].decode(errors="replace").rstrip()
        if text.strip():
            rank.last_line = text
            emit(Log(rank=rank.me.rank, line=text, t=time.time()))

    def _on_end(self, rank: LocalRank, status: int) -> None:
        rank.code = os.waitstatus_to_exitcode(status)
        if rank.code:
            next(part for part in self.parts if part.takes_failure(rank))
