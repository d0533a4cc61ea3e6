"""What both kinds of hosts of a run that recovers have: the leading one and those that follow it."""

import selectors
import socket
import time
from typing import Any, Protocol

from engine.job.events.incidents import LayoutChanged
from engine.job.launch import LaunchSpec
from engine.job.recovery.attempt import Attempt, EndedRank
from engine.job.recovery.history import History
from engine.job.recovery.layout import Layout
from engine.job.sections.failures import RecoverySettings

TICK_S = 0.5


class Ranks(Protocol):
    """The host's part: it starts and kills the ranks of its machine."""

    def begin(self, attempt: Attempt, store: socket.socket | None) -> None: ...
    def kill(self) -> None: ...
    def gone(self) -> bool: ...
    def peer_lost(self) -> list[EndedRank]: ...
    def held(self) -> dict[int, tuple[int, ...]]: ...
    def give_up(self, why: str) -> None: ...
    def leave(self, why: str) -> None: ...


class RecoveryHost:
    """A host's part in recovery.

    Attributes
    ----------
    recoveries, layout_changes : those so far, where this is the leading host.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        settings: RecoverySettings,
        ranks: Ranks,
        selector: selectors.BaseSelector,
        *,
        history: History,
        phase: str,
    ) -> None:
        self._spec, self._settings, self._ranks, self._selector = spec, settings, ranks, selector
        self._history, self._phase = history, phase
        self._since = time.monotonic()  # of waiting for another machine
        self._attempt = 0
        self._layout: Layout | None = None  # of this attempt, where it is not that of the launch
        self._lost_at = 0.0  # Unix time at which the leading host, or the one before this one, was lost
        self.recoveries: list[dict[str, Any]] = []
        self.layout_changes: list[dict[str, Any]] = []

    @property
    def awaits(self) -> bool:
        """Whether the run goes on, though no rank may live here."""
        return self._phase != "over"

    def propose(self, move: LayoutChanged) -> None:
        """The first rank asks to move to another layout; it is on the leading host's machine."""

    def deadline(self) -> float:
        """The latest time to call `tick` (time.monotonic())."""
        return time.monotonic() + (TICK_S if self._phase == "running" else 0.02)
