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


# A kernel that is out of memory kills without a word.
FOR_MEMORY = (
    "perhaps because the machine ran out of memory (its kernel's log says so: journalctl -k). "
    "Give it more memory, or fewer ranks or a smaller model"
)


def why_ended(rank: LocalRank, *, was_stopped: bool = False) -> str:
    """Why a rank that has ended did, in words: the signal, or the last line of its output.

    was_stopped : it was told to end, and killed where it did not.
    """
    assert rank.code is not None
    if rank.code < 0:
        by = f"killed by {signal.Signals(-rank.code).name}"
        if rank.silent_s is not None:
            by = f"silent for {rank.silent_s:.1f} s, so it was {by}"
        elif rank.code == -signal.SIGKILL and not was_stopped:
            by = f"{by}, {FOR_MEMORY}"
        return by + (f"; last line: {rank.last_line}" if rank.last_line else "")
    return rank.last_line or f"ended with status {rank.code} without output"
