"""Reports of a run's steps, which the host of the first rank keeps over that rank's restarts.

Losses ride in a small board of shared memory next to the events: a rank that is killed loses the events that
it has not written yet.
"""

import math
import mmap
import struct
from collections.abc import Iterator
from typing import Any

from engine.job.events.base import BaseEvent
from engine.job.events.training import Checkpoint, CheckpointState, Step, Validation
from engine.job.recovery.plan import Saved

Metrics = tuple[float, float, float | None]  # loss, gradient norm, loss in bits per byte
ENTRIES = 16  # of the board; a rank goes on only once the totals of the step before last are there
_ENTRY = struct.Struct("<qdddd")  # iteration + 1, loss, norm, bits per byte (NaN: not known), Unix time


class Board:
    """The latest losses, in memory that the host shares with the first rank."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, ENTRIES * _ENTRY.size)

    def note(self, iteration: int, metrics: Metrics, t: float) -> None:
        """Write down the loss of an iteration."""
        loss, norm, bits = metrics
        row = (iteration + 1, loss, norm, math.nan if bits is None else bits, t)
        _ENTRY.pack_into(self._map, iteration % ENTRIES * _ENTRY.size, *row)

    def entries(self) -> Iterator[tuple[int, Metrics, float]]:
        """(iteration, metrics, Unix time) of what is written down, the earliest first."""
        rows = sorted(_ENTRY.unpack_from(self._map, i * _ENTRY.size) for i in range(ENTRIES))
        for number, loss, norm, bits, t in rows:
            if number:
                yield number - 1, (loss, norm, None if math.isnan(bits) else bits), t


class History:
    """Every step is told once, however often it is done; `step_event` makes an event that was lost."""

    def __init__(self) -> None:
        self.board = Board()
        self.losses: dict[int, Metrics] = {}
        self.validation: dict[int, dict[str, Any]] = {}
        self.saved: Saved | None = None
        self.ended: dict[int, float] = {}  # Unix time at which the last iterations ended

    def takes(self, event: BaseEvent) -> bool:
        """Take note of an event; returns whether it is news."""
        match event:
            case Step(loss=float(loss), grad_norm=float(norm)):
                return self._takes_step(event.iteration, (loss, norm, event.bits_per_byte), event.t)
            case Validation(step=step):
                news = step not in self.validation
                bits = {"bits_per_byte": event.bits_per_byte}
                self.validation.setdefault(step, {"step": step, "loss": event.loss, **bits})
                return news
            case Checkpoint(state=CheckpointState.SAVED):
                self.saved = Saved(step=event.step, where=event.where)
        return True

    def unheard(self) -> list[tuple[int, Metrics, float]]:
        """Steps on the board that no event has reported; they count as reported from now on."""
        return [row for row in self.board.entries() if self._takes_step(*row)]

    def before(self, step: int) -> tuple[tuple[int, Metrics], ...]:
        """The iterations before `step` with their metrics, as far as they are known here."""
        return tuple((i, self.losses[i]) for i in sorted(self.losses) if i < step)

    def since(self, step: int) -> float | None:
        """Unix time at which the state after `step` steps was there, if that was lately."""
        return self.ended.get(step - 1)

    def _takes_step(self, iteration: int, metrics: Metrics, t: float) -> bool:
        if iteration in self.losses:
            return False
        self.losses[iteration] = metrics
        self.ended[iteration] = t
        self.ended.pop(iteration - ENTRIES, None)
        return True
