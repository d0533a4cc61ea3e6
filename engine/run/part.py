"""The parts of a host, which a job has or has not: the process itself knows none of them by name."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from engine.job.events.base import BaseEvent
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.swap.planned import SwapPlan
from engine.run.local_ranks import LocalRank
from engine.schedule import Schedule
from engine.train.start import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStart:
    """The ranks of this machine that start together, and what they are started with.

    ranks : those to start.
    schedule : of a pipeline job. plan : of a swap job.
    port : of the rendezvous store. store : its socket, on the machine of the first rank.
    """

    spec: LaunchSpec
    ranks: Sequence[RankAssignment]
    schedule: Schedule | None
    plan: SwapPlan | None
    port: int
    store: socket.socket | None


class HostPart:
    """A part of a host: the methods by which the host talks to it, of which it overrides what concerns it.

    The host asks its parts in order, and closes them in reverse order. None of the calls may wait for a rank.
    """

    @property
    def awaits(self) -> bool:
        """Whether the host goes on for this part, though no rank may live here."""
        return False

    def deadline(self) -> float | None:
        """When `tick` is to be called at the latest (time.monotonic()); None: not for this part."""
        return None

    def tick(self) -> None:
        """Do what is due. Called after whatever the host woke up for."""

    def equip(self, start: Start) -> Start:
        """The start of a rank, which is about to be forked, with what this part gives it."""
        return start

    def on_start(self, group: GroupStart) -> None:
        """The ranks of a group have been forked."""

    def takes_event(self, event: BaseEvent) -> bool:
        """Whether this part sees to a rank's event. One that no part takes is sent on as it is."""
        return False

    def on_told(self, event: BaseEvent) -> None:
        """An event of training is told to the host's owner, once."""

    def takes_failure(self, rank: LocalRank) -> bool:
        """Whether this part sees to the end of a rank that did not end well."""
        return False

    def stop(self) -> None:
        """The ranks are being stopped: none is to be started any more."""

    def close(self) -> None:
        """All ranks are gone and nothing awaits another: say what is left to say, and end."""
