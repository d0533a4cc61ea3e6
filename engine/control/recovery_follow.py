"""Recovery on a machine without the first rank: follows the leading host, and finds it again when lost."""

import contextlib
import selectors
import time
from collections.abc import Sequence

from engine.control.identity import identity_of
from engine.control.recovery_host import Ranks, RecoveryHost
from engine.control.recovery_messages import (
    FROM_LEADER,
    LISTENERS,
    CheckpointSaved,
    Fail,
    FromLeader,
    Halt,
    Halted,
    Hello,
    Leave,
    MachineState,
    Over,
    RanksEnded,
    Start,
    Welcome,
)
from engine.control.selector_driver import SelectorChannel, call
from engine.control.silence import SILENT_S
from engine.job.launch import LaunchSpec
from engine.job.recovery.attempt import Attempt, EndedRank
from engine.job.recovery.history import History
from engine.job.recovery.layout import NOT_NEEDED
from engine.job.reserve import most_gpus
from engine.job.sections.failures import RecoverySettings

AGAIN_S = 0.3  # between two attempts to connect


class Follow(RecoveryHost):
    """This machine's part; its ranks live only while the leading host does, their memory longer."""

    def __init__(
        self,
        spec: LaunchSpec,
        settings: RecoverySettings,
        ranks: Ranks,
        selector: selectors.BaseSelector,
        *,
        history: History,
    ) -> None:
        super().__init__(spec, settings, ranks, selector, history=history, phase="away")
        self._line: SelectorChannel[FromLeader] | None = None
        self._welcome = False
        self._again_at = 0.0

    def trouble(self, dead: Sequence[EndedRank]) -> None:
        """Ranks of this machine ended."""
        if self._line is not None and self._phase == "running":
            self._line.send(RanksEnded(dead=tuple(dead)))

    def tick(self) -> None:
        """Go a step further where that is possible now."""
        if self._line is not None:
            self._line.tick()
        if self._phase == "halting" and self._ranks.gone() and self._line is not None:
            self._phase = "halted"
            peer_lost = tuple(self._ranks.peer_lost())
            self._line.send(Halted(peer_lost=peer_lost, **dict(self._report())))
        if self._phase == "away" and self._ranks.gone():
            self._come_back()

    def runs(self) -> None:
        """The leading host says so."""

    def finished(self) -> None:
        """The leading host says when all is over."""

    def close(self) -> None:
        """Close the connection."""
        self._phase = "over"
        if self._line is not None:
            self._line.close()
            self._line = None

    def _come_back(self) -> None:
        now = time.monotonic()
        if now > self._since + self._settings.wait_s:
            where = f"{self._spec.rendezvous_host}:{self._spec.rendezvous_port}"
            self.close()
            self._ranks.held()  # forgets the ranks, which were killed here: that is not why the run ends
            self._ranks.give_up(f"no message from {where} for {self._settings.wait_s:g} s")
        elif (self._line is None or not self._line.open) and now >= self._again_at:
            self._again_at = now + AGAIN_S
            with contextlib.suppress(OSError):
                leader = self._spec.rendezvous_host, self._spec.rendezvous_port
                me = identity_of(self._spec, min(self._spec.local), LISTENERS)
                self._welcome = False
                self._line = call(
                    leader, self._selector, me, self._spec.first_rank, FROM_LEADER, self, silent_s=SILENT_S
                )

    # The leading host (selector_driver.Handler).

    def greeted(self, connection: SelectorChannel[FromLeader]) -> None:
        """It knows the secret: tell it what is here."""
        ranks = tuple(sorted(self._spec.local))
        reserve = tuple(a for a in self._spec.reserve if a.rank in ranks)
        connection.send(Hello(ranks=ranks, reserve=reserve, **dict(self._report())))

    def handle(self, connection: SelectorChannel[FromLeader], message: FromLeader) -> None:
        """Do what the leading host asks. Raises ValueError where it makes no sense now."""
        if not self._welcome and not isinstance(message, Welcome):
            raise ValueError("it sent a message before its welcome")
        match message:
            case Welcome():
                self._welcome, self._phase = True, "halted"
            case Start():
                self._start(message.attempt)
            case Halt() if self._phase == "running":
                self._phase = "halting"
                self._ranks.kill()
            case CheckpointSaved():
                self._history.saved = message.saved
            case Over():
                self.close()
            case Leave():
                self.close()
                self._ranks.leave(message.why)
            case Fail():
                self.close()
                self._ranks.give_up(message.why)

    def lost(self, connection: SelectorChannel[FromLeader], why: str) -> None:
        """The leading host is gone: nothing here goes on without it."""
        self._line = None
        if self._phase == "running":
            self._lost_at = time.time()
            self._ranks.kill()
        if self._phase != "away":
            self._since = time.monotonic()
        self._phase = "away"

    def _start(self, attempt: Attempt) -> None:
        present = attempt.layout.applied(self._spec) if attempt.layout is not None else self._spec
        if not present.local_ranks and most_gpus(self._spec.job) is None:
            self.close()
            self._ranks.leave(NOT_NEEDED)
            return
        self._attempt, self._layout, self._phase = attempt.number, attempt.layout, "running"
        self._ranks.begin(attempt, None)

    def _report(self) -> MachineState:
        return MachineState(
            held=self._ranks.held(),
            attempt=self._attempt,
            saved=self._history.saved,
            lost_at=self._lost_at,
            layout=self._layout,
        )
