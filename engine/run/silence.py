"""Kills ranks that hang, where no other rank would notice it."""

import contextlib
import dataclasses
import os
import signal

from engine.control.pulse import Pulses
from engine.run.part import GroupStart, HostPart
from engine.run.rank_processes import RankProcesses
from engine.train.start import Start


class SilenceWatch(HostPart):
    """Watches the heartbeats that ranks write into memory they share with the host."""

    def __init__(self, ranks: RankProcesses, pulses: Pulses) -> None:
        self._ranks, self._pulses = ranks, pulses
        self._stopped = False

    def deadline(self) -> float | None:
        """When heartbeats are read next."""
        return None if self._stopped else self._pulses.deadline()

    def tick(self) -> None:
        """Kill who has been silent for too long: their end is noticed, and dealt with, like any other's."""
        if self._stopped:
            return
        silent = self._pulses.silent()
        for rank in self._ranks.living():
            if rank.me.rank in silent:
                rank.silent_s = silent[rank.me.rank]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)

    def equip(self, start: Start) -> Start:
        """A rank gets the memory that its heartbeat is written into."""
        return dataclasses.replace(start, pulses=self._pulses)

    def on_start(self, group: GroupStart) -> None:
        """Each rank has as long to begin as it may be silent later."""
        for me in group.ranks:
            self._pulses.expect(me.rank)

    def stop(self) -> None:
        """Ranks that are to end are killed by their time anyway."""
        self._stopped = True
