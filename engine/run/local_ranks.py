"""The ranks of one machine as their host sees them, and the events in which it tells of them."""

import signal
import sys
from dataclasses import dataclass
from typing import Any

from engine.job.events.base import BaseEvent
from engine.job.launch import EXIT_FINAL, EXIT_PEER_LOST, RankAssignment
from engine.job.recovery.attempt import EndedRank


@dataclass(slots=True)
class LocalRank:
    """The process of a rank.

    open_pipes : of its output and its events, those not read to the end.
    silent_s : it was killed for having been silent for so long.
    """

    me: RankAssignment
    pid: int
    log: Any
    last_line: str = ""
    code: int | None = None
    open_pipes: int = 2
    silent_s: float | None = None


def emit(event: BaseEvent) -> None:
    """Tell the host's owner, in a line of JSON on standard output."""
    emit_line(event.to_json())


def emit_line(line: bytes) -> None:
    """As `emit`, of an event as it came from a rank or a prefill coordinator."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def dead(rank: LocalRank) -> EndedRank:
    """How a rank ended, as recovery takes it."""
    code = rank.code
    return EndedRank(
        rank=rank.me.rank, why=why_ended(rank), cause=code != EXIT_PEER_LOST, final=code == EXIT_FINAL
    )


def why_ended(rank: LocalRank) -> str:
    """Why a rank that has ended did, in words: the signal, or the last line of its output."""
    assert rank.code is not None
    if rank.code < 0:
        name = signal.Signals(-rank.code).name
        silent = "" if rank.silent_s is None else f"silent for {rank.silent_s:.1f} s, so it was "
        return f"{silent}killed by {name}" + (f"; last line: {rank.last_line}" if rank.last_line else "")
    return rank.last_line or f"ended with status {rank.code} without output"
