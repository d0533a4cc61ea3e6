"""What a node has been told to run, kept over restarts of its agent: the memory behind fencing.

One small JSON file per node. For each run: the newest generation seen, whether it was stopped, and the last
state of each local rank with its process id. A run that leaves no trace here was never started here.
"""

import contextlib
import json
import logging
import math
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from engine.documents import read_json_file
from engine.job.events.training import Rank, RankState
from engine.private import private

log = logging.getLogger(__name__)

KEPT_RUNS = 500
ENDED = frozenset({RankState.FINISHED, RankState.FAILED, RankState.STOPPED})
LATELY_S = 30.0  # longer than an event of an end may be late


@dataclass(slots=True, kw_only=True)
class RankRecord:
    """The last known state of one rank; `started`, its process's start, tells it from a reused id."""

    state: RankState
    pid: int | None = None
    started: float | None = None
    noted: float = field(default_factory=time.monotonic)


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """The newest generation of one run on this node."""

    generation: int
    closed: bool = False  # a stop came: no start of this generation is taken any more
    start: int = 1  # the last one of this generation: a run that recovers starts a lost machine again
    ranks: dict[int, RankRecord] = field(default_factory=dict)

    def follows(self, start: int) -> bool:
        """Whether such a start may follow: it is a later one, and nothing is left of the one before."""
        return start > self.start and not self.closed and all(r.state in ENDED for r in self.ranks.values())


class Ledger:
    """The records of all runs, written to `path` on each change; safe between threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._runs: dict[str, RunRecord] = _read(path)

    def admit(self, run: str, generation: int, ranks: tuple[int, ...], start: int = 1) -> str:
        """Record a start; '' where it may go ahead, else why not: older, again or stopped.

        A later `start` of the same generation may go ahead once all ranks of the one before have ended.
        """
        with self._lock:
            record = self._runs.get(run)
            if record is not None and generation < record.generation:
                return f"older: generation {generation} is older than {record.generation}, seen here already"
            if record is not None and generation == record.generation and not record.follows(start):
                return (
                    f"stopped: generation {generation} was stopped before it arrived"
                    if record.closed
                    else "again"
                )
            self._runs.pop(run, None)  # to the end: the newest are kept longest
            self._runs[run] = RunRecord(
                generation=generation,
                start=start,
                ranks={rank: RankRecord(state=RankState.STARTING) for rank in ranks},
            )
            self._write()
            return ""

    def close(self, run: str, generation: int) -> None:
        """Record a stop, of a generation that may not have come yet."""
        with self._lock:
            record = self._runs.get(run)
            if record is None or record.generation < generation:
                self._runs.pop(run, None)
                self._runs[run] = RunRecord(generation=generation, closed=True)
            elif record.generation == generation:
                record.closed = True
            self._write()

    def note(self, event: Rank) -> None:
        """Take over the state in a `rank` event of the newest generation."""
        with self._lock:
            record = self._runs.get(event.run or "")
            if record is None or record.generation != event.generation:
                return
            before = record.ranks.get(event.rank)
            pid = event.pid or (before.pid if before else None)
            start_time = before.started if before and before.pid == pid else _start_time(pid)
            record.ranks[event.rank] = RankRecord(state=event.state, pid=pid, started=start_time)
            self._write()

    def unfinished(self) -> list[dict[str, Any]]:
        """Return the ranks whose last known state is no end: run, generation, rank, pid, state, started."""
        return [rank for rank in self._ranks() if rank["state"] not in ENDED]

    def ended(self, run: str, generation: int, start: int) -> list[int]:
        """The ranks of a start of a run that are known to have ended."""
        with self._lock:
            run_record = self._runs.get(run)
            if run_record is None or (run_record.generation, run_record.start) != (generation, start):
                return []
            return [rank for rank, record in run_record.ranks.items() if record.state in ENDED]

    def recent(self) -> list[dict[str, Any]]:
        """As `unfinished`, and those that ended in the last `LATELY_S`: a report may overtake their event."""
        since = time.monotonic() - LATELY_S
        return [rank for rank in self._ranks() if rank["state"] not in ENDED or rank["noted"] > since]

    def _ranks(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {"run": run, "generation": record.generation, "start": record.start, "rank": rank}
                | {
                    "pid": rank_record.pid,
                    "state": rank_record.state,
                    "started": rank_record.started,
                    "noted": rank_record.noted,
                }
                for run, record in self._runs.items()
                for rank, rank_record in sorted(record.ranks.items())
            ]

    def _write(self) -> None:
        ended = [
            run for run, record in self._runs.items() if all(r.state in ENDED for r in record.ranks.values())
        ]
        for run in ended[: max(0, len(self._runs) - KEPT_RUNS)]:
            del self._runs[run]
        data = {
            run: {
                "generation": record.generation,
                "closed": record.closed,
                "start": record.start,
                "ranks": {str(rank): [r.state, r.pid, r.started] for rank, r in record.ranks.items()},
            }
            for run, record in self._runs.items()
        }
        new = self._path.with_suffix(".new")
        try:
            with open(new, "w", encoding="utf-8", opener=private) as file:
                json.dump(data, file)
            new.replace(self._path)
        except OSError as error:  # a full disk must not stop ranks from being started or stopped
            log.error("the record of runs cannot be written (%s)", error.strerror)


def start_time_matches(pid: int, start_time: float | None) -> bool:
    """Return whether process `pid` lives and is the one that started then."""
    now = _start_time(pid)
    return now is not None and start_time is not None and abs(now - start_time) < 0.05


def _start_time(pid: int | None) -> float | None:
    if pid is None:
        return None
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return float(process.create_time())
    return None


def _read(path: Path) -> dict[str, RunRecord]:
    try:
        with path.open("rb") as file:
            data = read_json_file(file)
        return {
            run: RunRecord(
                generation=record["generation"],
                closed=record["closed"],
                start=record.get("start", 1),
                ranks={
                    int(rank): RankRecord(
                        state=RankState(state), pid=pid, started=start_time, noted=-math.inf
                    )
                    for rank, (state, pid, start_time) in record["ranks"].items()
                },
            )
            for run, record in data.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.error("the record of runs in %s cannot be read (%s): starting a new one", path, error)
        return {}
