"""Recovery on the machine of the first rank: decides when all ranks end and where they restart.

It keeps nothing that the others could not tell it: should it be lost itself, its successor asks them.
"""

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.control.lines import Message
from engine.control.listening import listen
from engine.control.recovery_lines import LEADER, Line, proof, proves
from engine.errors import Infeasible
from engine.job.launch import LaunchSpec
from engine.job.recovery.history import History
from engine.job.recovery.layout import NOT_NEEDED, Layout, change, roles
from engine.job.recovery.life import Dead, Life, Trouble
from engine.job.recovery.plan import Saved, way_on
from engine.job.recovery.smaller import smaller
from engine.job.settings import RecoverySettings

HOUR_S = 3600.0
TICK_S = 0.5


class Ranks(Protocol):
    """The host's part: it starts and kills the ranks of its machine."""

    def begin(self, life: Life, store: socket.socket | None) -> None: ...
    def kill(self) -> None: ...
    def gone(self) -> bool: ...
    def bereft(self) -> list[Dead]: ...
    def held(self) -> dict[int, tuple[int, ...]]: ...
    def give_up(self, why: str) -> None: ...
    def leave(self, why: str) -> None: ...


class Lead:
    """The leading host's part.

    Parameters
    ----------
    listener : where the other machines' hosts connect; None where all ranks are here.
    """

    def __init__(
        self, spec: LaunchSpec, settings: RecoverySettings, ranks: Ranks, selector: selectors.BaseSelector, *,
        history: History, say: Callable[[dict[str, Any]], None], listener: socket.socket | None,
    ) -> None:  # fmt: skip
        self._spec, self._settings, self._ranks, self._say = spec, settings, ranks, say
        self._selector, self._history, self._listener = selector, history, listener
        self._lines: list[Line] = []
        self._phase = "gathering"
        self._since = time.monotonic()
        self._held = ranks.held()
        self._saved: Saved | None = None
        self._present = spec  # in the layout of the present life, or of the next one
        self._layout: Layout | None = None
        self._change: dict[str, Any] = {}  # of the layout, as it is told once all ranks run
        self._life = 0
        self._way: Life | None = None
        self._trouble: Trouble | None = None
        self._recoveries: deque[float] = deque()
        self._lost_at = 0.0  # Unix time at which the others lost the leading host before this one
        self.told: list[dict[str, Any]] = []
        if listener is not None:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ, self._accept)

    @property
    def files(self) -> list[int]:
        """Descriptors that only this process is to hold."""
        own = [self._listener.fileno()] if self._listener is not None else []
        return [*own, *(line.file for line in self._lines)]

    @property
    def awaits(self) -> bool:
        """Whether the run goes on, though no rank may live here."""
        return self._phase != "over"

    def deadline(self) -> float:
        """The latest time to call `tick` (time.monotonic())."""
        return time.monotonic() + (TICK_S if self._phase == "running" else 0.02)

    def trouble(self, dead: Sequence[Dead]) -> None:
        """Ranks of this machine ended."""
        if self._phase == "running":
            self._noticed().add(dead)
            self._halt()

    def tick(self) -> None:
        """Go a step further where that is possible now."""
        for line in list(self._lines):
            line.tick()
        if self._history.saved != self._saved and self._history.saved is not None:
            self._saved = self._history.saved
            self._tell_all("saved", step=self._saved.step, where=self._saved.where)
        if self._phase == "halting" and self._ranks.gone():
            self._noticed().add(self._ranks.bereft())
            self._held.update(self._ranks.held())
            self._phase = "gathering"
        if self._phase == "gathering":
            missing = [a for a in self._present.ranks if a.rank not in self._held]
            if not missing:
                self._begin()
            elif time.monotonic() > self._since + self._settings.wait_s:
                nodes = ", ".join(sorted({a.node for a in missing}))
                self._go_on_without(f"no message from {nodes} for {self._settings.wait_s:g} s")

    def runs(self) -> None:
        """All ranks have begun."""
        if self._trouble is None or self._way is None:
            return
        failed, detail = self._trouble.described(self._spec)
        now, way = time.time(), self._way
        event = {
            "failed": failed, "detail": detail, "noticed": self._trouble.noticed,
            "detected_s": round(self._trouble.silent_s, 3), "from": way.source, "iteration": way.step,
            "lost_s": round(now - (self._history.since(way.step) or self._trouble.noticed), 3),
            "life": way.number, "t": now, **self._change,
        }  # fmt: skip
        self._trouble, self._change = None, {}
        self.told.append(_without_job(event))
        self._say({"kind": "recovery", "rank": self._spec.first_rank, **event})

    def finished(self) -> None:
        """The result is there."""
        self._end("over")

    def close(self) -> None:
        """Close every connection."""
        self._phase = "over"
        for line in self._lines:
            line.close()
        self._lines.clear()
        if self._listener is not None and self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()

    def _noticed(self) -> Trouble:
        if self._trouble is None:
            self._trouble = Trouble(noticed=time.time())
        return self._trouble

    def _halt(self) -> None:
        """End all ranks; the run goes on without them unless that has happened too often."""
        now = time.monotonic()
        while self._recoveries and now - self._recoveries[0] > HOUR_S:
            self._recoveries.popleft()
        assert self._trouble is not None
        if any(rank.final for rank in self._trouble.dead.values()):
            self._give_up(self._trouble.described(self._spec)[1])
            return
        if len(self._recoveries) >= self._settings.attempts:
            most = f"after {len(self._recoveries)} recoveries within an hour (recovery.attempts)"
            self._give_up(f"{self._trouble.described(self._spec)[1]}; {most}")
            return
        self._recoveries.append(now)
        self._phase, self._since = "halting", now
        self._tell_all("halt")
        self._ranks.kill()

    def _go_on_without(self, why: str) -> None:
        """Go over to a layout on the ranks that are there, where they hold the model."""
        if not self._settings.smaller or not self._life:  # nothing has begun yet that could go on
            self._give_up(why)
            return
        found = smaller(self._present, set(self._held))
        if isinstance(found, Infeasible):
            self._give_up(f"{why}, and the run cannot continue with fewer nodes: {found.reason}")
            return
        before, had = self._present, roles(self._present)
        self._layout, self._present = found, found.applied(self._spec)
        has = roles(self._present)
        self._held.update({rank: () for rank in self._held if has.get(rank) != had[rank]})
        self._change = change(before, self._present, why)
        self._begin()

    def _begin(self) -> None:
        spec, history = self._present, self._history
        saved = self._saved
        if self._life and self._way is None:  # the others have lived before: this machine's host is a new one
            own = next(a.node for a in spec.ranks if a.rank == spec.first_rank)
            self._noticed().nodes[own] = "its host was started again"
            self._noticed().noticed = self._lost_at or self._noticed().noticed
        way = way_on(spec, self._held, saved)
        with listen(spec.rendezvous_host, spec.ports, spec.first_rank) as store:
            self._life += 1
            self._way = Life(
                number=self._life, step=way.step, source=way.source, where=way.where, peers=way.peers,
                store_port=store.getsockname()[1], saved_step=saved.step if saved else 0,
                validated_step=max(history.validation, default=0),
                retell=way.source in ("memory", "peer") and way.step - 1 not in history.losses,
                layout=self._layout,
            )  # fmt: skip
            self._phase = "running"
            self._held.clear()
            self._tell_all("start", life=self._way.to_dict())
            self._ranks.begin(self._way, store)

    def _give_up(self, why: str) -> None:
        self._end("fail", why=why)
        self._ranks.give_up(why)

    def _end(self, op: str, **fields: Any) -> None:
        self._tell_all(op, **fields)
        self.close()

    def _tell_all(self, op: str, **fields: Any) -> None:
        for line in list(self._lines):
            if line.ranks:
                line.tell(op, **fields)

    # The other machines.

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        line = Line(connection, self._selector, hear=self._hear, gone=self._lost)
        self._lines.append(line)
        line.tell("nonce", nonce=line.nonce)

    def _hear(self, line: Line, message: Message) -> None:
        op = message["op"]
        if not line.ranks:
            self._greet(line, message)
        elif op == "halted":
            if self._trouble is not None:
                self._trouble.add(Dead(**dead) for dead in message["bereft"])
            self._report(message)
        elif op == "trouble" and self._phase == "running":
            self._noticed().add(Dead(**dead) for dead in message["dead"])
            self._halt()

    def _greet(self, line: Line, message: Message) -> None:
        ranks = tuple(sorted(int(rank) for rank in message["ranks"]))
        others = {a.rank for a in self._spec.ranks} - set(self._spec.local)
        known = ranks and proves(message["mac"], self._spec, ranks[0], line.nonce)
        if not known or not set(ranks) <= others:
            raise ValueError("it does not belong to this run")
        for before in [other for other in self._lines if set(other.ranks) & set(ranks)]:
            before.close()
            self._lost(before, "its host was started again")
        line.ranks = ranks
        line.tell("welcome", mac=proof(self._spec, LEADER, str(message["nonce"])))
        self._report(message)
        if not self._needs(line):
            line.tell("leave", why=NOT_NEEDED)
            return
        if self._phase == "running":  # its ranks are not there: the others cannot go on
            self._noticed()
            self._halt()

    def _report(self, message: Message) -> None:
        if message["layout"] and int(message["life"]) > self._life:  # this host is a new one
            self._layout = Layout.of(message["layout"])
            self._present = self._layout.applied(self._spec)
        self._held.update({int(rank): tuple(map(int, steps)) for rank, steps in message["held"]})
        self._life = max(self._life, int(message["life"]))
        self._lost_at = max(self._lost_at, float(message["lost_at"]))
        if message["saved"]:
            saved = Saved(step=int(message["saved"][0]), where=str(message["saved"][1]))
            self._saved = max((s for s in (self._saved, saved) if s), key=lambda s: s.step)

    def _needs(self, line: Line) -> bool:
        """Whether a machine has ranks in the present layout."""
        return any(a.rank in line.ranks for a in self._present.ranks)

    def _lost(self, line: Line, why: str) -> None:
        """A machine is gone, and its memory with it."""
        self._lines.remove(line)
        if not line.ranks or not self._needs(line) or self._phase == "over":
            return
        for rank in line.ranks:
            self._held.pop(rank, None)
        nodes = {a.node for a in self._spec.ranks if a.rank in line.ranks}
        self._noticed().nodes.update(dict.fromkeys(nodes, why))
        if self._phase == "running":
            self._halt()


def _without_job(event: dict[str, Any]) -> dict[str, Any]:
    """What the result keeps of a `recovery` event: not the whole document of the smaller layout."""
    if "layout" not in event:
        return event
    return {**event, "layout": {k: v for k, v in event["layout"].items() if k not in ("job", "seats")}}
