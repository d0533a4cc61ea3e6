"""Starts, fences and stops the ranks of this node; the tasks call it, and it reports by events."""

import contextlib
import dataclasses
import logging
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from engine.documents import read_json
from engine.errors import InputError
from engine.job.events.base import Emit
from engine.job.events.event import Event
from engine.job.events.node import NodeRank
from engine.job.events.training import Rank, RankState
from engine.job.file_access import FileAccess
from engine.job.launch import LaunchSpec
from engine.run.launcher import RankGroup
from workers.ledger import Ledger, start_time_matches
from workers.shims import has_shim

log = logging.getLogger(__name__)

LONGEST_GRACE_S = 60.0
KILLED_S = 3.0  # from the kill of ranks to the event that says so, on a machine that is busy
KEPT_LOGS = 20
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


MakeGroup = Callable[[LaunchSpec, Callable[[Event], None]], RankGroup]
FindGroup = Callable[[Path, Callable[[Event], None], Callable[[LaunchSpec], Iterable[int]]], RankGroup | None]


class RankSupervisor:
    """All rank groups of one node.

    A generation of a run is started at most once here; a start of an older one is refused; a stop that
    overtakes its start keeps that start out. So tasks may be delivered twice, late and out of order.

    Parameters
    ----------
    files : what documents may name on this machine; a run that names anything else is refused.
    publish : takes every event of every group; must not block.
    make_group : makes the ranks of a spec.
    find_group : of the folder of a run's logs, the ranks that an earlier life of the agent left at work, or
        None; its last argument says which ranks of a spec have ended already.
    """

    def __init__(
        self,
        *,
        node: str,
        logs: Path,
        ledger: Ledger,
        files: FileAccess,
        publish: Emit,
        make_group: MakeGroup,
        find_group: FindGroup,
    ) -> None:
        self._node = node
        self._logs = logs
        self._ledger = ledger
        self._files = files
        self._publish = publish
        self._make_group, self._find_group = make_group, find_group
        self._groups: dict[str, tuple[int, RankGroup]] = {}
        self._gpu_of_rank: dict[str, dict[int, int]] = {}  # of the ranks of each run in _groups
        self._lock = threading.Lock()

    def start(self, text: str) -> str:
        """Start the local ranks of a launch spec (JSON); return what was done, for the log."""
        try:
            spec = self._read(text)
        except InputError as error:
            self._refuse_unreadable(text, str(error))
            return f"refused: {error}"
        refused = self._ledger.admit(spec.run, spec.generation, spec.local, spec.start)
        if refused == "again":
            return "already started"
        if refused:
            reason, _, detail = refused.partition(": ")
            state = RankState.STOPPED if reason == "stopped" else RankState.FAILED
            self._report(spec, state, f"refused: {detail}")
            return f"refused: {detail}"
        self._stop_group(spec.run, below=spec.generation, grace_s=1.0)
        try:
            _prune(self._logs)
            self._begin(self._make_group(spec, self._on_event))
        except Exception as error:
            log.exception("run %s could not be started", spec.run)
            self._report(spec, RankState.FAILED, f"the node could not start the ranks: {error}")
            return f"failed: {error}"
        return f"started ranks {', '.join(map(str, spec.local))}"

    def stop(self, run: str, generation: int, grace_s: float, *, boundary: bool = False) -> str:
        """Stop the ranks of a run up to that generation, in the background; return what is being done.

        With `boundary` they end together after a whole iteration, in their own time.
        """
        self._ledger.close(run, generation)
        grace_s = min(max(0.0, grace_s), LONGEST_GRACE_S)
        with self._lock:
            group = self._groups.get(run)
        if group is None or group[0] > generation:
            return "nothing to stop"
        if boundary:
            group[1].stop_at_boundary()
            return "stopping after a complete iteration"
        threading.Thread(
            target=self._stop_group, args=(run, generation + 1, grace_s), name=f"stop-{run}", daemon=True
        ).start()
        return f"stopping, {grace_s:g} s of grace"

    def stop_all(self, grace_s: float) -> None:
        """Stop every group at once, and return when all have ended; for the end of the agent."""
        with self._lock:
            groups = [group for _, group in self._groups.values()]
        threads = [threading.Thread(target=group.stop, args=(grace_s,), daemon=True) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(grace_s + KILLED_S)

    def states(self) -> tuple[NodeRank, ...]:
        """The ranks that live or ended lately, for the heartbeat."""
        self._forget_ended()
        return tuple(
            NodeRank(
                run=rank["run"],
                generation=rank["generation"],
                rank=rank["rank"],
                pid=rank["pid"],
                state=rank["state"],
            )
            for rank in self._ledger.recent()
        )

    def processes(self) -> list[tuple[int, int]]:
        """(GPU, process id) of the ranks that live."""
        with self._lock:
            gpus = dict(self._gpu_of_rank)
        return [
            (gpus[rank["run"]][rank["rank"]], rank["pid"])
            for rank in self._ledger.unfinished()
            if rank["pid"] is not None and rank["rank"] in gpus.get(rank["run"], {})
        ]

    def take_over(self) -> list[str]:
        """Supervise again what an earlier life of the agent left at work; returns its runs."""
        groups = []
        for folder in sorted(self._logs.iterdir()) if self._logs.is_dir() else ():
            group = self._find_group(folder, self._on_event, self._ended)
            if group is not None:
                self._begin(group)
                groups.append(group.spec.run)
        return groups

    def report_gone(self) -> int:
        """Report as failed, and kill, those ranks of an earlier life of the agent that nobody supervises."""
        with self._lock:
            running = {(run, generation) for run, (generation, _) in self._groups.items()}
        dead_ranks = [
            rank for rank in self._ledger.unfinished() if (rank["run"], rank["generation"]) not in running
        ]
        for rank in dead_ranks:
            pid = rank["pid"]
            if pid is not None and start_time_matches(pid, rank["started"]):
                log.warning(
                    "rank %s of run %s outlived the agent: killing process %d", rank["rank"], rank["run"], pid
                )
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            detail = "the node's agent ended, so its ranks ended too"
            event = Rank(
                rank=rank["rank"], state=RankState.FAILED, detail=detail, pid=pid, gone=True, t=time.time()
            )
            self._on_event(event.of(rank["run"], rank["generation"], rank["start"]))
        return len(dead_ranks)

    def _read(self, text: str) -> LaunchSpec:
        spec = LaunchSpec.from_json(text)
        if not _FOLDER_NAME.fullmatch(spec.run):
            raise InputError("run", spec.run, "must be letters, digits, dots, hyphens, at most 100")
        if type(spec.generation) is not int or spec.generation < 0:
            raise InputError("generation", spec.generation, "must be a whole number, at least 0")
        places = {assignment.rank: assignment.node for assignment in spec.gpus}
        for rank in spec.local:
            if places.get(rank) != self._node:
                raise InputError("local", rank, f"must be ranks that `ranks` puts on node {self._node}")
        # Where logs go is this machine's own affair, and so is what else a run may read and write.
        folder = self._logs / f"{spec.run}-{spec.generation}"
        return dataclasses.replace(spec, log_dir=str(folder), job=self._files.opened(spec.job))

    def _begin(self, group: RankGroup) -> None:
        spec = group.spec
        # Started under the lock: a heartbeat in between would take it for one that has ended, and forget it.
        with self._lock:
            group.start()
            self._groups[spec.run] = (spec.generation, group)
            self._gpu_of_rank[spec.run] = {rank.rank: rank.gpu for rank in spec.gpus}

    def _ended(self, spec: LaunchSpec) -> list[int]:
        return self._ledger.ended(spec.run, spec.generation, spec.start)

    def _stop_group(self, run: str, below: int, grace_s: float) -> None:
        with self._lock:
            group = self._groups.get(run)
        if group is not None and group[0] < below:
            group[1].stop(grace_s)
        self._forget_ended()

    def _forget_ended(self) -> None:
        with self._lock:
            for run in [run for run, (_, group) in self._groups.items() if not group.running()]:
                del self._groups[run]
                self._gpu_of_rank.pop(run, None)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Rank):
            self._ledger.note(event)
        self._publish(event)

    def _report(self, spec: LaunchSpec, state: RankState, detail: str) -> None:
        for rank in spec.local:
            event = Rank(rank=rank, state=state, detail=detail, t=time.time())
            self._on_event(event.of(spec.run, spec.generation, 1))

    def _refuse_unreadable(self, text: str, reason: str) -> None:
        """Say so to the run that a broken spec belongs to, as far as it can be told."""
        log.error("a launch spec was refused: %s", reason)
        try:
            values = read_json(text)
            events = [
                Rank(
                    run=values["run"],
                    generation=values["generation"],
                    rank=rank,
                    state=RankState.FAILED,
                    detail=f"refused: {reason}",
                    t=time.time(),
                )
                for rank in values["local"]
            ]
        except (ValueError, KeyError, TypeError):
            return
        for event in events:
            self._publish(event)


def _prune(logs: Path) -> None:
    """Make room for one more of KEPT_LOGS folders of rank logs: a node runs for years."""
    if not logs.is_dir():
        return
    over = (f for f in logs.iterdir() if f.is_dir() and not has_shim(f))
    folders = sorted(over, key=lambda f: f.stat().st_mtime)
    for folder in folders[: max(0, len(folders) - KEPT_LOGS + 1)]:
        shutil.rmtree(folder, ignore_errors=True)
