"""Keeps a set of children running, restarts what dies, and stops all of them in order.

One thread and one loop: children die with the *thread* that started them (PR_SET_PDEATHSIG), so everything is
started from the main thread, which also reads their output.
"""

import selectors
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

from webapp.servers.embedded import EmbeddedServers
from webapp.servers.errors import ServersError
from webapp.servers.logs import last_line
from webapp.servers.valkey import Valkey
from webapp.supervisor.children import MOST_DEATHS, STEADY_S, Child, in_words, pause_s
from webapp.supervisor.console import Console
from webapp.supervisor.services import Service

NAME = "meridian"
TICK_S = 0.2
BAD_INPUT = 2
LOOK_AT_DISK_S = 1.0
LEAST_ROOM_MB = 20  # with less, PostgreSQL (a WAL segment has 16 MB) and Valkey end at their next write
ROOM_AGAIN_MB = 100  # to start again, and to take in what has waited
# When it is said that our broker hangs, and when it is ended. What it has acknowledged is on disk.
SAY_HUNG_AFTER_S = 5.0
END_HUNG_AFTER_S = 30.0


class Interrupted(Exception):
    """Ctrl-C or SIGTERM came."""


class Failed(Exception):
    """Something that everything else needs cannot be kept running; said already."""


class Refused(Exception):
    """A command that must run first refuses its settings; the message is its last line."""


class Supervisor:
    """The children and the embedded servers that they use.

    Parameters
    ----------
    servers : watched and restarted like children; None where both URLs are given.
    """

    def __init__(self, console: Console, servers: EmbeddedServers | None = None) -> None:
        self._console = console
        self._servers = servers
        self._children: list[Child] = []
        self._commands: list[Child] = []
        self._server_deaths: dict[str, list[float]] = {}
        self._gives_up = True
        self._failed = False
        self._hangs = False
        self._waits_for_space = False
        self._look_at_disk = 0.0
        self._signals = 0

    def install_signals(self) -> None:
        """Stop on Ctrl-C, SIGTERM and a closed terminal; a second Ctrl-C kills."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def say(self, text: str) -> None:
        """Print a line of the supervisor's own."""
        self._console.line(NAME, text)

    def start(self, services: Sequence[Service]) -> None:
        """Start services; from now on they are kept running."""
        for service in services:
            self._check_interrupted()
            child = Child(service, self._console)
            self._children.append(child)
            child.start()

    def run_once(self, service: Service) -> None:
        """Run a command to its end, printing its output.

        Raises
        ------
        Refused
            It ended with status 2: bad input.
        Failed
            It ended with another status than 0.
        Interrupted
            A stop came meanwhile; the command was ended.
        """
        child = self.begin(service)
        if status := self.finish(child):
            last = child.last[-1] if child.last else "no output"
            if status == BAD_INPUT:
                raise Refused(last)
            self.say(f"{service.name} failed with {in_words(status)}: {last}")
            raise Failed

    def begin(self, service: Service) -> Child:
        """Start a command that runs to its end while others do; `finish` waits for it."""
        child = Child(service, self._console)
        self._commands.append(child)
        child.start()
        return child

    def finish(self, child: Child) -> int:
        """Wait for the end of a command, printing its output; returns its exit status.

        Raises
        ------
        Interrupted
            A stop came meanwhile; the command was ended.
        """
        try:
            while child.alive:
                self._pump([child])
                self._check_interrupted()
        except Interrupted:
            self._end(self._commands)
            raise
        finally:
            self._commands.remove(child)
        return child.buried()

    def watch(self, until: Callable[[], bool] = lambda: False, *, gives_up: bool = True) -> None:
        """Print output and restart what dies, until `until` says so.

        gives_up : whether a part that dies again and again ends it all. It does while the site starts, since
            such a part cannot run with these settings; a site that has run is not ended for one that is
            killed, or for as long as something else is away.

        Raises
        ------
        Interrupted
            Ctrl-C or SIGTERM came.
        Failed
            A child or a server died MOST_DEATHS times in a row.
        """
        self._gives_up = gives_up
        while not until():
            self._pump(self._children)
            self._check_interrupted()
            if self._disk_is_full():
                continue
            self._mend_servers()
            for child in self._children:
                self._mend(child)

    def stop(self) -> None:
        """Stop commands, the children stage by stage (agents and their ranks first), then the servers.

        Where the site cannot go on, ranks are left to train until it is started again, for as long as they
        wait for their agents (MERIDIAN_KEEP_RANKS_S).
        """
        self._end(self._commands)
        for stage in sorted({child.service.stage for child in self._children}):
            self._end([child for child in self._children if child.service.stage == stage])
        for child in self._children:
            child.pump()
            child.leave()
        if self._servers is not None:
            self._servers.stop()

    def _end(self, group: Sequence[Child]) -> None:
        shown = [*self._children, *self._commands]
        _end(group, lambda: self._pump(shown), lambda: self._signals > 1, leave_ranks=self._failed)

    def _mend(self, child: Child) -> None:
        if child.alive:
            return
        if child.process is not None:
            status = in_words(child.buried())
            name = child.service.name
            if self._gives_up and child.deaths >= MOST_DEATHS:
                self.say(
                    f"{name} died {child.deaths} times in a row, last with {status}: stopping everything"
                )
                self._quote(child)
                self._failed = True
                raise Failed
            assert child.restart_at is not None
            self.say(
                f"{name} died with {status}; again in {max(0.0, child.restart_at - time.monotonic()):.1f} s"
            )
            self._quote(child)
        elif child.restart_at is not None and time.monotonic() >= child.restart_at:
            child.start()

    def _quote(self, child: Child) -> None:
        for line in list(child.last)[-3:]:
            self.say(f"  its last lines: {line}")

    def _mend_servers(self) -> None:
        for server in self._servers.servers if self._servers is not None else ():
            if server.child is None or server.child.poll() is None:
                if isinstance(server, Valkey):
                    self._watch_pulse(server)
                continue
            status = in_words(server.child.returncode)
            self.say(f"{server.name} died with {status}: {last_line(server.log)}")
            self._restart_server(server.name, pause_s(self._deaths_of(server.name)))

    def _deaths_of(self, name: str) -> int:
        """Count a death of a server; returns how many there were in a minute. Raises Failed as `watch`."""
        now = time.monotonic()
        recent = [at for at in self._server_deaths.get(name, []) if now - at < STEADY_S]
        self._server_deaths[name] = [*recent, now]
        if self._gives_up and len(recent) + 1 >= MOST_DEATHS:
            self.say(f"{name} keeps dying: stopping everything")
            self._failed = True
            raise Failed
        return len(recent) + 1

    def _watch_pulse(self, broker: Valkey) -> None:
        """Say that our own broker hangs, and end it if it does so for long; it is then started again."""
        silent_s = broker.silent_s()
        if silent_s >= END_HUNG_AFTER_S and broker.child is not None:
            self.say(f"{broker.name} has not answered for {silent_s:.0f} s: it is ended and started again")
            self._hangs = False
            broker.child.kill()
            broker.child.wait()
        elif silent_s >= SAY_HUNG_AFTER_S and not self._hangs:
            self.say(f"{broker.name} has not answered for {silent_s:.0f} s")
            self._hangs = True
        elif self._hangs and silent_s == 0.0:
            self.say(f"{broker.name} answers again")
            self._hangs = False

    def _disk_is_full(self) -> bool:
        """Whether something died for want of space: nothing is started again before there is some.

        A death on a full disk is nobody's fault and counts for nothing: the ranks train on, and their agents
        keep what they report, until somebody has made room.
        """
        if self._servers is None or time.monotonic() < self._look_at_disk:
            return self._waits_for_space
        self._look_at_disk = time.monotonic() + LOOK_AT_DISK_S
        free_mb = self._servers.free_mb()
        least_mb = ROOM_AGAIN_MB if self._waits_for_space else LEAST_ROOM_MB
        if free_mb >= least_mb:
            if self._waits_for_space:
                self.say(f"{free_mb} MB free again: going on")
            self._waits_for_space = False
        elif not self._waits_for_space and (down := self._down()):
            self._waits_for_space = True
            self.say(
                f"disk full: {free_mb} MB free under {self._servers.var}; {', '.join(down)} died and "
                f"will start again when {ROOM_AGAIN_MB} MB are free"
            )
            self._server_deaths.clear()
            for child in self._children:
                child.deaths = 0
        return self._waits_for_space

    def _down(self) -> list[str]:
        """Names of the servers and children that do not live."""
        assert self._servers is not None
        servers = [one.name for one in self._servers.servers if one.child and one.child.poll() is not None]
        return servers + [child.service.name for child in self._children if not child.alive]

    def _restart_server(self, name: str, after_s: float) -> None:
        assert self._servers is not None
        deadline = time.monotonic() + after_s
        while time.monotonic() < deadline:
            self._pump(self._children)
            self._check_interrupted()
        try:
            self._servers.restart(name)
            self.say(f"{name} runs again")
        except ServersError as error:
            self.say(str(error))  # its child is dead: the next round counts that

    def _pump(self, children: Sequence[Child]) -> None:
        with selectors.DefaultSelector() as selector:
            for child in children:
                if child.process is not None and child.process.stdout is not None:
                    selector.register(child.process.stdout, selectors.EVENT_READ, child)
            if not selector.get_map():
                time.sleep(TICK_S)
                return
            if sum(key.data.pump() for key, _ in selector.select(TICK_S)) == 0:
                time.sleep(0.02)  # a closed pipe is always readable: do not spin on it

    def _check_interrupted(self) -> None:
        if self._signals:
            raise Interrupted

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1


def _end(
    children: Sequence[Child], pump: Callable[[], None], hurry: Callable[[], bool], *, leave_ranks: bool
) -> None:
    """The signal to stop to all at once, SIGKILL to each after its own patience, or on a second Ctrl-C."""
    for child in children:
        child.signal(signal.SIGTERM if leave_ranks else child.service.stop_signal)
    began = time.monotonic()
    while any(child.alive for child in children):
        for child in children:
            if hurry() or time.monotonic() - began > child.service.patience_s:
                child.signal(signal.SIGKILL)
        pump()
