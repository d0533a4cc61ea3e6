"""The process that hosts the ranks of one machine: imports torch once, forks a rank per GPU, watches them.

Reads a launch spec and then commands (``stop GRACE_S``; ``boundary``: end after a whole iteration; ``cut
[A, B, SECONDS]``: a drill) from standard input, a line each; writes events to standard output as JSON lines.
When standard input closes, its owner is gone: the ranks are killed.
A rank's process is a fork of this one before it has any other thread, as in multiprocessing's forkserver.
"""

import contextlib
import json
import math
import mmap
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.control.pulse import Pulses
from engine.errors import InputError
from engine.job.events.event import from_json
from engine.job.events.training import Log, Rank, RankState, Result
from engine.job.job import TrainJob
from engine.job.launch import EXIT_PEER_LOST, LaunchSpec, RankAssignment
from engine.job.planned import schedule_of
from engine.job.predict import predict
from engine.job.prefill.adjacent_stages import adjacent_stages
from engine.job.recovery.attempt import EndedRank
from engine.job.result import completed
from engine.job.swap.planned import SwapPlan, planned
from engine.run import rank as rank_module
from engine.run.coordinators import PrefillCoordinators
from engine.run.gpus import check_machine
from engine.run.host_start import (
    become_rank,
    corpora_of,
    import_ahead,
    import_tensor_parallel,
    listen_for_ranks,
    watch_children,
    with_rate,
)
from engine.run.local_ranks import LocalRank, dead, emit, emit_line, why_ended
from engine.run.recovery import Machine
from engine.schedule import Schedule
from engine.serve.served import examine, warm
from engine.train.corpus import Corpus
from engine.train.memory import share
from engine.train.swap.result import result_of
from engine.train.swap.tracker import Tracker
from engine.transport.tls import TlsContexts, TlsFiles

# How long a rank that lost a peer waits to be told apart from the rank that is the cause, or to be stopped as
# its peer was: agents that are shut down together do not stop their ranks in the same second.
CAUSE_S = 3.0
# The same where the run goes on: all ranks end anyway, and only what is said of it depends on the cause.
CAUSE_OF_RECOVERY_S = 0.3
KILL_AFTER_FAILURE_S = 2.0
LONGEST_LINE = 4096


@dataclass(slots=True)
class _Pipe:
    owner: LocalRank
    is_events: bool
    rest: bytes = b""


@dataclass(slots=True)
class Host:
    """The ranks of one machine and what became of them."""

    spec: LaunchSpec
    schedule: Schedule | None  # of a pipeline job
    plan: SwapPlan | None  # of a swap job
    corpora: dict[str, Corpus]  # by name of the data centre
    began: float
    job: TrainJob  # in its present layout, of a run that recovers
    ranks: dict[int, LocalRank] = field(default_factory=dict)
    stopping: bool = False
    result: dict[str, Any] | None = None
    tracker: Tracker | None = None  # of a swap job, where this machine has the first rank
    pulses: Pulses | None = None  # of ranks whose silence nobody else would notice
    coordinators: PrefillCoordinators | None = None  # of prefill; empty in a job without it
    # Shared with the ranks, which are forks of this process: a signal could come before its handler.
    _asked: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _kill_at: float | None = None
    _judge_at: float | None = None
    _said: set[int] = field(default_factory=set)
    _commands: bytes = b""
    _port: int = 0
    machine: Machine | None = None  # of a run that recovers
    _killing: bool = False
    _life_read: int = -1
    _life_write: int = -1

    def run(self) -> int:
        """Start the ranks and watch them to their end; returns the exit status."""
        self._port, listener = listen_for_ranks(self.spec)
        self._life_read, self._life_write = os.pipe()
        watch_children(self._selector)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._command)
        if self.spec.job.failures.recovery is not None:
            import_ahead()
            predict(self.spec.job, schedule=self.schedule)  # compiles what a smaller layout is judged by
        if self.spec.job.cell.tp > 1:
            import_tensor_parallel()
        share()
        self.pulses = Pulses.of(self.spec.job, self.spec.local)
        if self.plan is not None and listener is not None:
            self.tracker = Tracker(
                self.spec, listener, self._selector, say=emit, start=self._start_late, asked=self._asked
            )
        self.coordinators = PrefillCoordinators(
            selector=self._selector, say=emit, life=(self._life_read, self._life_write)
        )
        if self.spec.job.failures.recovery is not None:
            self.machine = Machine(self.spec, self, self._selector, say=emit, listener=listener)
        else:
            self._fork_all(listener)
            if self.tracker is None and listener is not None:
                listener.close()
        while self._going_on():
            self._turn()
        self.coordinators.close()
        self._judge(final=True)
        self._give_result()
        return 0

    def _fork_all(self, listener: socket.socket | None) -> None:
        spec = self.machine.spec_now() if self.machine else self.spec
        for me in spec.ranks:
            if me.rank in spec.local and not self._comes_later(me):
                self._fork(me, listener)
        if self.schedule is not None and self.coordinators is not None:
            self.coordinators.open(spec, self.schedule, self._port)

    def _going_on(self) -> bool:
        here = not self.all_gone()
        elsewhere = self.tracker is not None and not self.stopping and self.tracker.awaits
        again = self._recovers()
        return here or elsewhere or again or self._undecided()

    # What recovery asks of the host (recovery.machine.Processes).

    def start_all(self, store: socket.socket | None, port: int) -> None:
        """Fork all ranks for another attempt; `store`: its rendezvous store's socket, on its machine."""
        self._port, self._killing, self.result = port, False, None
        self._fork_all(store)

    def kill_all(self) -> None:
        """Kill the ranks that are left, of whose end nothing is to be said."""
        self._killing, self._judge_at = True, None
        self._signal(signal.SIGKILL)

    def all_gone(self) -> bool:
        """Whether no rank lives, and everything that they said has been read."""
        return all(rank.code is not None and not rank.open_pipes for rank in self.ranks.values())

    def peer_lost(self) -> list[EndedRank]:
        """Ranks that ended for having lost another one."""
        return [dead(rank) for rank in self.ranks.values() if rank.code == EXIT_PEER_LOST]

    def forget_all(self) -> None:
        """Forget the ranks, which are gone."""
        for rank in self.ranks.values():
            rank.log.close()
        self.ranks.clear()

    def leave(self, ranks: Sequence[int], why: str) -> None:
        """Say of ranks, which have no process, that the run goes on without them."""
        for rank in ranks:
            self._say_ended(rank, RankState.LEFT, why)

    def cut(self, job: TrainJob) -> None:
        """Go over to the schedule of the run in another layout."""
        self.job, self.schedule = job, schedule_of(job)

    def fail(self, why: str) -> None:
        """End the run, saying of ranks that are dead how they ended, or `why` where none is there."""
        if self.ranks:
            self._judge(final=False)
            self._stop(KILL_AFTER_FAILURE_S)
            return
        first, *others = sorted(set(self.spec.local) - self._said)
        self._say_ended(first, RankState.FAILED, why)
        for rank in others:
            self._say_ended(rank, RankState.STOPPED, why)

    def _give_result(self) -> None:
        if self.tracker is not None and self.plan is not None:
            self.tracker.close()
            if self.tracker.over and self.tracker.stats:
                emit(Result(**result_of(self.spec.job, self.plan, self.tracker)))
        elif self.result is not None and all(rank.code == 0 for rank in self.ranks.values()):
            assert self.schedule is not None
            recovered = {"recoveries": self.machine.recoveries} if self.machine is not None else {}
            result = completed(self.job, self.schedule, self.result)
            emit(Result(**{**result, **recovered}))

    def _comes_later(self, me: RankAssignment) -> bool:
        """Whether a worker is to start when the tracker, which is here, says so."""
        return self.tracker is not None and me.rank >= self.spec.job.cell.world_size

    def _start_late(self, rank: int) -> None:
        if rank in self.spec.local and not self.stopping:
            self._fork(next(me for me in self.spec.ranks if me.rank == rank), None)

    def _fork(self, me: RankAssignment, listener: socket.socket | None) -> None:
        out_read, out_write = os.pipe()
        events_read, events_write = os.pipe()
        hosts_store = listener is not None and me.rank == self.spec.first_rank
        machine = self.machine
        start = rank_module.Start(
            spec=machine.spec_now() if machine else self.spec,
            me=me,
            schedule=self.schedule,
            plan=self.plan,
            corpus=self.corpora[me.dc_name],
            port=self._port,
            listen_fd=listener.fileno() if listener is not None and hosts_store else None,
            events_fd=events_write,
            began=self.began,
            asked=self._asked,
            kept=machine.kept(me.rank) if machine else None,
            cuts=machine.cuts if machine else None,
            pulses=self.pulses,
        )
        if self.pulses is not None:
            self.pulses.expect(me.rank)
        pid = os.fork()
        if pid == 0:
            for fd in (out_read, events_read, self._life_write, *self._others()):
                os.close(fd)
            become_rank(start, out_write, self._life_read)
        os.close(out_write)
        os.close(events_write)
        log = open(os.path.join(self.spec.log_dir, f"rank-{me.rank}.log"), "ab", buffering=0)  # noqa: SIM115
        rank = LocalRank(me, pid, log)
        self.ranks[pid] = rank
        self._selector.register(out_read, selectors.EVENT_READ, _Pipe(rank, is_events=False))
        self._selector.register(events_read, selectors.EVENT_READ, _Pipe(rank, is_events=True))
        self._say(rank, RankState.STARTING)

    def _recovers(self) -> bool:
        """Whether the run goes on where ranks are lost."""
        return self.machine is not None and self.machine.awaits and not self.stopping

    def _undecided(self) -> bool:
        """Whether ranks ended of which it is not clear yet whether they failed or were to be stopped."""
        return self._judge_at is not None and not self.stopping

    def _others(self) -> list[int]:
        pipes = [key.fd for key in self._selector.get_map().values() if isinstance(key.data, _Pipe)]
        lines = self.tracker or self.machine
        return [*pipes, *(lines.files if lines else [])]

    def _turn(self) -> None:
        ticks = self.tracker.deadline() if self.tracker else None
        again = self.machine.deadline() if self.machine and self._recovers() else None
        opens = self.coordinators.deadline() if self.coordinators and not self.stopping else None
        beats = self.pulses.deadline() if self.pulses and not self.stopping else None
        all_deadlines = (self._kill_at, self._judge_at, ticks, again, opens, beats)
        deadlines = [at for at in all_deadlines if at is not None]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, _Pipe):
                self._read(key.fd, key.data)
            else:
                key.data()
        self._reap()
        if self.pulses is not None and not self.stopping:
            self._end_silent(self.pulses)
        if self.coordinators is not None and not self.stopping:
            self.coordinators.tick()
        if self.tracker is not None:
            self.tracker.tick()
            self._heed(self.tracker)
        if self.machine is not None and self._recovers():
            well = self.all_gone() and all(rank.code == 0 for rank in self.ranks.values())
            self.machine.tick(finished=well and self.result is not None)
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._signal(signal.SIGKILL)
        if self._judge_at is not None and now >= self._judge_at:
            self._judge(final=False)

    def _read(self, fd: int, pipe: _Pipe) -> None:
        data = os.read(fd, 1 << 20)
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            pipe.owner.open_pipes -= 1
            if pipe.rest:
                self._line(pipe, pipe.rest)
            return
        *lines, pipe.rest = (pipe.rest + data).split(b"\n")
        for line in lines:
            self._line(pipe, line)

    def _line(self, pipe: _Pipe, line: bytes) -> None:
        rank = pipe.owner
        if not pipe.is_events:
            with contextlib.suppress(OSError):  # a disk that is full costs the line, not the run
                rank.log.write(line + b"\n")
            text = line[:LONGEST_LINE].decode(errors="replace").rstrip()
            if text.strip():
                rank.last_line = text
                emit(Log(rank=rank.me.rank, line=text, t=time.time()))
            return
        with contextlib.suppress(ValueError):  # a rank that is killed may leave half a line
            event = from_json(line)
            if isinstance(event, Result):
                self.result = event.outcome
            elif self.machine is not None:
                self.machine.heard(event)
            else:
                emit_line(line)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.coordinators is not None and self.coordinators.reaped(pid, status):
                continue
            rank = self.ranks[pid]
            rank.code = os.waitstatus_to_exitcode(status)
            if rank.code == 0:
                continue
            if self._can_do_without(rank):
                self._said.add(rank.me.rank)
                self._say(rank, RankState.LEFT, why_ended(rank))
            elif not self.stopping and not self._killing:
                # The rank that is the cause may be reaped after those that noticed its end.
                late = CAUSE_S if self.machine is None else CAUSE_OF_RECOVERY_S
                soon = 0.1 if rank.code != EXIT_PEER_LOST else late
                self._judge_at = min(self._judge_at or math.inf, time.monotonic() + soon)

    def _end_silent(self, pulses: Pulses) -> None:
        """Kill ranks that hang: their end is noticed, and dealt with, like any other's."""
        silent = pulses.silent()
        for rank in self.ranks.values():
            if rank.code is None and rank.me.rank in silent:
                rank.silent_s = silent[rank.me.rank]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)

    def _can_do_without(self, rank: LocalRank) -> bool:
        """Whether a lost worker leaves its work to others; one that ends with an error fails the run."""
        assert rank.code is not None
        if self.plan is None or self.stopping or not (rank.code < 0 or rank.code == EXIT_PEER_LOST):
            return False
        return self.tracker.survives(rank.me.rank) if self.tracker is not None else rank.code < 0

    def _heed(self, tracker: Tracker) -> None:
        """Stop a run that its tracker has given up."""
        if tracker.failure is not None and not self.stopping:
            for rank in [rank for rank in self.ranks.values() if rank.code is None][:1]:
                self._said.add(rank.me.rank)
                self._say(rank, RankState.FAILED, tracker.failure)
            self._stop(KILL_AFTER_FAILURE_S)

    def _judge(self, *, final: bool) -> None:
        """Say what became of the ranks that ended; the first time that some failed, stop the others."""
        self._judge_at = None
        if self.machine is not None and self._recovers():
            self.machine.ended([dead(rank) for rank in self.ranks.values() if rank.code])
            return
        ended = [rank for rank in self.ranks.values() if rank.code is not None]
        causes = [r for r in ended if r.code not in (0, EXIT_PEER_LOST)]
        for rank in ended:
            if (
                rank.code
                and rank.me.rank not in self._said
                and (final or not rank.open_pipes or rank.code < 0)
            ):
                lost_peer = rank.code == EXIT_PEER_LOST and bool(causes)
                self._said.add(rank.me.rank)
                state = RankState.STOPPED if self.stopping or lost_peer else RankState.FAILED
                self._say(rank, state, why_ended(rank))
        if final:
            for rank in ended:
                if rank.code == 0:
                    self._say(rank, RankState.FINISHED)
            if self.stopping and self.machine is not None:
                for lost in set(self.spec.local) - {rank.me.rank for rank in ended}:
                    self._say_ended(lost, RankState.STOPPED, "stopped before it was started again")
        elif not self.stopping:
            self._stop(KILL_AFTER_FAILURE_S)

    def _say(self, rank: LocalRank, state: RankState, detail: str = "") -> None:
        rank_event = Rank(
            rank=rank.me.rank, state=state, detail=detail, exit_code=rank.code, pid=rank.pid, t=time.time()
        )
        emit(rank_event)

    def _say_ended(self, rank: int, state: RankState, detail: str) -> None:
        """Of a rank that has no process here at the moment."""
        if rank not in self._said:
            self._said.add(rank)
            emit(Rank(rank=rank, state=state, detail=detail, t=time.time()))

    def _command(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            self._selector.unregister(sys.stdin.fileno())
            self._stop(0.0)
            return
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            if line.startswith(b"stop "):
                self._stop(float(line.split()[1]))
            elif line == b"boundary":
                self._asked[0] = 1
            elif line.startswith(b"cut ") and self.machine is not None:
                self.machine.cuts.cut(*json.loads(line[4:]))

    def _stop(self, grace_s: float) -> None:
        self.stopping = True
        if self.machine is not None:
            self.machine.close()
        self._signal(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        self._kill_at = time.monotonic() + grace_s

    def _signal(self, number: signal.Signals) -> None:
        for rank in self.ranks.values():
            if rank.code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, number)


def main() -> int:
    """Entry point of ``python -m engine.run.host``."""
    began = time.time()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Unbuffered, one line: what follows it is for the selector.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            return 0
        line += byte
    spec = LaunchSpec.from_json(line.decode())
    try:
        check_machine(spec)
        TlsContexts.of(TlsFiles.of(spec.job))  # before anything starts
        schedule, plan = (
            (None, planned(spec.job)) if spec.job.swap_strategy else (schedule_of(spec.job), None)
        )
        if spec.job.prefill is not None:
            local = [me for me in spec.ranks if me.rank in spec.local]
            examine(spec.job.prefill, stages=[adjacent_stages(spec, me).stage for me in local])
            warm()
        corpora = corpora_of(spec)
        spec = with_rate(spec, corpora)
        return Host(spec, schedule, plan, corpora, began, spec.job).run()
    except InputError as error:
        for rank in spec.local:
            emit(Rank(rank=rank, state=RankState.FAILED, detail=str(error), t=time.time()))
        return 0
    except BrokenPipeError:  # the owner is gone
        return 1


if __name__ == "__main__":
    sys.exit(main())
