"""Recovery on a machine without the first rank: follows the leading host, and finds it again when lost."""

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from engine.control.lines import Message
from engine.control.recovery_lead import TICK_S, Ranks
from engine.control.recovery_lines import LEADER, Line, proof, proves
from engine.job.launch import LaunchSpec
from engine.job.recovery.history import History
from engine.job.recovery.layout import NOT_NEEDED, Layout
from engine.job.recovery.life import Dead, Life
from engine.job.recovery.plan import Saved
from engine.job.settings import RecoverySettings

AGAIN_S = 0.3  # between two attempts to connect
CONNECT_S = 1.0


class Follow:
    """This machine's part; its ranks live only while the leading host does, their memory longer."""

    def __init__(
        self, spec: LaunchSpec, settings: RecoverySettings, ranks: Ranks, selector: selectors.BaseSelector, *,
        history: History,
    ) -> None:  # fmt: skip
        self._spec, self._settings, self._ranks, self._selector = spec, settings, ranks, selector
        self._history = history
        self._line: Line | None = None
        self._welcome = False
        self._phase = "away"
        self._life = 0
        self._layout: Layout | None = None
        self._since = time.monotonic()  # without the leading host
        self._again_at = 0.0
        self._lost_at = 0.0  # Unix time at which the leading host was lost
        self.told: list[dict[str, Any]] = []  # the leading host's affair

    @property
    def files(self) -> list[int]:
        """Descriptors that only this process is to hold."""
        return [self._line.file] if self._line else []

    @property
    def awaits(self) -> bool:
        """Whether the run goes on, though no rank may live here."""
        return self._phase != "over"

    def deadline(self) -> float:
        """The latest time to call `tick` (time.monotonic())."""
        return time.monotonic() + (TICK_S if self._phase == "running" else 0.02)

    def trouble(self, dead: Sequence[Dead]) -> None:
        """Ranks of this machine ended."""
        if self._line is not None and self._phase == "running":
            self._line.tell("trouble", dead=[asdict(rank) for rank in dead])

    def tick(self) -> None:
        """Go a step further where that is possible now."""
        if self._line is not None:
            self._line.tick()
        if self._phase == "halting" and self._ranks.gone() and self._line is not None:
            self._phase = "halted"
            bereft = [asdict(rank) for rank in self._ranks.bereft()]
            self._line.tell("halted", bereft=bereft, **self._report())
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
        elif self._line is None and now >= self._again_at:
            self._again_at = now + AGAIN_S
            with contextlib.suppress(OSError):
                leader = self._spec.rendezvous_host, self._spec.rendezvous_port
                connection = socket.create_connection(leader, CONNECT_S)
                self._welcome = False
                self._line = Line(connection, self._selector, hear=self._hear, gone=self._lost)

    def _hear(self, line: Line, message: Message) -> None:
        op = message["op"]
        if op == "nonce":
            local = sorted(self._spec.local)
            mac = proof(self._spec, local[0], str(message["nonce"]))
            line.tell("hello", ranks=local, mac=mac, nonce=line.nonce, **self._report())
        elif op == "welcome":
            self._welcome = proves(message["mac"], self._spec, LEADER, line.nonce)
            self._phase = "halted" if self._welcome else self._phase
        elif op != "beat" and not self._welcome:
            raise ValueError("it does not know the run's secret")
        elif op == "start":
            life = Life.of(message["life"])
            if life.layout is not None and not life.layout.applied(self._spec).local:
                self.close()
                self._ranks.leave(NOT_NEEDED)
                return
            self._life, self._layout, self._phase = life.number, life.layout, "running"
            self._ranks.begin(life, None)
        elif op == "halt" and self._phase == "running":
            self._phase = "halting"
            self._ranks.kill()
        elif op == "saved":
            self._history.saved = Saved(step=int(message["step"]), where=str(message["where"]))
        elif op == "over":
            self.close()
        elif op == "leave":
            self.close()
            self._ranks.leave(str(message["why"]))
        elif op == "fail":
            self.close()
            self._ranks.give_up(str(message["why"]))

    def _report(self) -> dict[str, Any]:
        saved = self._history.saved
        return {
            "held": list(self._ranks.held().items()), "life": self._life,
            "saved": [saved.step, saved.where] if saved else None, "lost_at": self._lost_at,
            "layout": self._layout.to_dict() if self._layout else None,
        }  # fmt: skip

    def _lost(self, line: Line, why: str) -> None:
        """The leading host is gone: nothing here goes on without it."""
        self._line = None
        if self._phase == "running":
            self._lost_at = time.time()
            self._ranks.kill()
        if self._phase != "away":
            self._since = time.monotonic()
        self._phase = "away"
