"""The process that hosts the ranks of one machine: imports torch once, forks a rank per GPU, watches them.

Reads a launch spec and then commands (``stop GRACE_S``; ``boundary``: end after a whole iteration; ``cut
[A, B, SECONDS]``: a drill) from standard input, a line each; writes events to standard output as JSON lines.
When standard input closes, its owner is gone: the ranks are killed.
A rank's process is a fork of this one before it has any other thread, as in multiprocessing's forkserver.
"""

import os
import selectors
import signal
import sys
import time

from engine.errors import InputError
from engine.job.events.training import Rank, RankState
from engine.job.launch import LaunchSpec
from engine.job.planned import schedule_of
from engine.job.prefill.adjacent_stages import adjacent_stages
from engine.job.swap.planned import planned
from engine.run.gpus import check_machine
from engine.run.host_start import corpora_of, listen_for_ranks, prepare, watch_children, with_rate
from engine.run.local_ranks import emit
from engine.run.part import GroupStart
from engine.run.parts import Commands, begin
from engine.run.rank_processes import Children, RankProcesses
from engine.serve.served import examine, warm
from engine.train.corpus import Corpus
from engine.train.trackers import check_trackers
from engine.transport.tls import TlsContexts, TlsFiles


class Host:
    """The loop of this process: waits for its owner's commands, its children, and what its parts wait for.

    corpora : what ranks read, by name of the data centre. began : Unix time at which this process began.
    """

    def __init__(self, spec: LaunchSpec, corpora: dict[str, Corpus], began: float) -> None:
        self._selector = selectors.DefaultSelector()
        self._children: Children = {}
        self._ranks = RankProcesses(spec, self._selector, self._children, corpora=corpora, began=began)
        self._commands: Commands = {
            "stop": lambda grace_s: self._ranks.stop(float(grace_s)),
            "boundary": self._ask_for_end,
        }
        self._line = b""

    def run(self, first: GroupStart) -> None:
        """Start the ranks and watch them to their end."""
        watch_children(self._selector)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._read_commands)
        begin(self._ranks, first, self._selector, children=self._children, commands=self._commands)
        parts = self._ranks.parts
        while not self._ranks.all_gone() or any(part.awaits for part in parts):
            self._turn()
        for part in reversed(parts):
            part.close()

    def _turn(self) -> None:
        ranks, parts = self._ranks, self._ranks.parts
        every_deadline = (*(part.deadline() for part in parts), ranks.deadline())
        deadlines = [at for at in every_deadline if at is not None]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for key, _ in self._selector.select(timeout):
            key.data()
        self._reap()
        for part in parts:
            part.tick()
        ranks.tick()

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.pop(pid)(status)

    def _read_commands(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            self._selector.unregister(sys.stdin.fileno())
            self._ranks.stop(0.0)
            return
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            name, _, rest = line.decode().partition(" ")
            if name in self._commands:
                self._commands[name](rest)

    def _ask_for_end(self, _: str) -> None:
        self._ranks.stop_flag[0] = 1


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
        _host(spec, began)
    except InputError as error:
        for rank in spec.local:
            emit(Rank(rank=rank, state=RankState.FAILED, detail=str(error), t=time.time()))
    except BrokenPipeError:  # the owner is gone
        return 1
    return 0


def _host(spec: LaunchSpec, began: float) -> None:
    """Host the ranks of a spec. Raises InputError, where nothing has been started."""
    job, local = spec.job, list(spec.local_ranks)
    check_machine(spec)
    if spec.first_rank in spec.local:
        check_trackers(job.tracking)
    TlsContexts.of(TlsFiles.of(job))  # before anything starts
    plan = planned(job) if job.swap_strategy else None
    schedule = schedule_of(job) if plan is None else None
    if job.prefill is not None:
        examine(job.prefill, stages=[adjacent_stages(spec, me).stage for me in local])
        warm()
    corpora = corpora_of(spec)
    spec = with_rate(spec, corpora)
    port, store = listen_for_ranks(spec)
    host = Host(spec, corpora, began)
    prepare(spec.job, schedule)
    host.run(GroupStart(spec=spec, ranks=local, schedule=schedule, plan=plan, port=port, store=store))


if __name__ == "__main__":
    sys.exit(main())
