"""The shim: holds the pipes of a host of ranks for a node's agent, so that ranks outlive their agent.

    python -m workers.shim SOCKET FOLDER KEEP_S LOSSY

SOCKET is the descriptor of a listening Unix socket, FOLDER that of the run's logs, and LOSSY the kinds of
events, with commas, of which the oldest may be dropped where an agent is away for too long.

An agent that connects is told what the shim was started with and all that no agent has acknowledged, and from
then on what the host says. Frames are lines; the shim sends

    S [SPEC]       once, first: the launch spec, if there is one yet
    E NUMBER EVENT an event of the host, or of a rank, as it came
    D NUMBER COUNT so many events were dropped here
    X NUMBER CODE  the host has ended with this status; it is the last one

and takes

    L SPEC         start the host
    C COMMAND      a command to the host
    K              kill the host and its ranks
    A NUMBER       what has a number up to this one is safe with the agent

A newer connection ends the one before. Without an agent for KEEP_S seconds the shim stops the ranks, keeps
what nobody has acknowledged in FOLDER/left, and ends. It imports little but the standard library: there
is one a run and node.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from engine.private import private
from engine.run.host_process import kill, spawn

MOST_BYTES = 64 * 1024 * 1024  # of events that no agent has acknowledged; past them the lossy ones go
STOP_GRACE_S = 5.0
TICK_S = 0.5
LEFT = "left"  # a file in FOLDER
ADDRESS = "shim"  # another one, while the shim is there: the path of its socket
_PART = 1 << 16

Frame = tuple[int, bytes]  # number, and the line as it is sent


class Shim:
    """The loop between one host and its agent."""

    def __init__(
        self,
        listener: socket.socket,
        folder: Path,
        keep_s: float,
        lossy: frozenset[str],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._listener, self._folder, self._keep_s, self._lossy = listener, folder, keep_s, lossy
        self._most_bytes = most_bytes
        self._selector = selectors.DefaultSelector()
        self._host: subprocess.Popen[bytes] | None = None
        self._spec = b""
        self._agent: socket.socket | None = None
        self._heard, self._said = b"", b""  # the begun line of the agent, and of the host
        self._unsent = bytearray()  # to the agent, of frames that count as sent
        self._waiting: deque[Frame] = deque()
        self._sent: deque[Frame] = deque()  # on this connection, and not acknowledged
        self._bytes = 0  # of both
        self._count = 0
        self._alone_since: float | None = time.monotonic()
        self._stopping_since: float | None = None
        self._over = False  # the host has ended, and all that it said was read

    def run(self) -> None:
        """Work until the host has ended and an agent knows it, or until no agent comes any more."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while not self._done():
            for key, _ in self._selector.select(TICK_S):
                key.data()
            self._look_for_agent()
        if self._sent or self._waiting:
            self._leave()

    def _done(self) -> bool:
        if self._host is None:
            return self._alone()
        return self._over and (not (self._sent or self._waiting) or self._alone())

    def _alone(self) -> bool:
        return self._alone_since is not None and time.monotonic() - self._alone_since > self._keep_s

    def _accept(self) -> None:
        agent, _ = self._listener.accept()
        self._hang_up()
        agent.setblocking(False)
        self._agent, self._alone_since = agent, None
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self._unsent += b"S " + self._spec + b"\n"
        self._selector.register(agent, selectors.EVENT_READ, self._converse)
        self._converse_later()

    def _hang_up(self) -> None:
        if self._agent is not None:
            self._selector.unregister(self._agent)
            self._agent.close()
        self._agent, self._heard = None, b""
        self._unsent.clear()
        self._alone_since = time.monotonic()

    def _converse_later(self) -> None:
        """Wait for the agent to read, as long as there is something for it."""
        if self._agent is None:
            return
        writes = bool(self._unsent or self._waiting)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)
        self._selector.modify(self._agent, events, self._converse)

    def _converse(self) -> None:
        assert self._agent is not None
        try:
            self._read_agent(self._agent)  # first: an agent that has left may have said that all is safe
            self._write(self._agent)
        except OSError:
            self._hang_up()
        self._converse_later()

    def _write(self, agent: socket.socket) -> None:
        while self._waiting and len(self._unsent) < _PART:
            frame = self._waiting.popleft()
            self._sent.append(frame)
            self._unsent += frame[1]
        with contextlib.suppress(BlockingIOError):
            del self._unsent[: agent.send(self._unsent)]

    def _read_agent(self, agent: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := agent.recv(_PART):
                *lines, self._heard = (self._heard + data).split(b"\n")
                for line in lines:
                    self._obey(line)
            raise ConnectionResetError

    def _obey(self, line: bytes) -> None:
        kind, _, rest = line.partition(b" ")
        if kind == b"A":
            while self._sent and self._sent[0][0] <= int(rest):
                self._bytes -= len(self._sent.popleft()[1])
        elif kind == b"L" and self._host is None:
            self._launch(rest)
        elif kind == b"C" and self._host is not None:
            self._command(rest)
        elif kind == b"K" and self._host is not None:
            kill(self._host)

    def _launch(self, spec: bytes) -> None:
        self._spec, self._host = spec, spawn(self._folder)
        assert self._host.stdout is not None
        self._command(spec)
        self._selector.register(self._host.stdout, selectors.EVENT_READ, self._read_host)

    def _command(self, line: bytes) -> None:
        assert self._host is not None
        assert self._host.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._host.stdin.write(line + b"\n")
            self._host.stdin.flush()

    def _read_host(self) -> None:
        assert self._host is not None
        assert self._host.stdout is not None
        data = os.read(self._host.stdout.fileno(), 1 << 20)
        if data:
            *lines, self._said = (self._said + data).split(b"\n")
            for line in lines:
                self._add(b"E", line)
        else:
            self._selector.unregister(self._host.stdout)
            if self._said:
                self._add(b"E", self._said)
            code = self._host.wait()
            if code:
                kill(self._host)  # its ranks, which it did not end
            self._add(b"X", b"%d" % code)
            self._over = True
        self._converse_later()

    def _add(self, kind: bytes, text: bytes) -> None:
        self._count += 1
        frame = b"%s %d %s\n" % (kind, self._count, text)
        self._waiting.append((self._count, frame))
        self._bytes += len(frame)
        if self._bytes > self._most_bytes:
            self._drop()

    def _drop(self) -> None:
        """Drop the oldest events of kinds that may be lost, down to three quarters of the bound."""
        remaining: deque[Frame] = deque()
        first = dropped = 0
        for number, frame in self._waiting:
            if self._bytes > 0.75 * self._most_bytes and _kind(frame) in self._lossy:
                self._bytes -= len(frame)
                first, dropped = first or number, dropped + 1
                if dropped == 1:
                    remaining.append((number, b""))  # the place of the frame that says how many
            else:
                remaining.append((number, frame))
        says = b"D %d %d\n" % (first, dropped)
        self._bytes += len(says) if dropped else 0
        self._waiting = deque((number, frame or says) for number, frame in remaining)

    def _look_for_agent(self) -> None:
        """Stop the ranks where no agent has come for long, and kill those that do not end."""
        if self._host is None or self._over or not self._alone():
            return
        now = time.monotonic()
        if self._stopping_since is None:
            self._stopping_since = now
            self._command(b"stop %g" % STOP_GRACE_S)
        elif now - self._stopping_since > 2 * STOP_GRACE_S:
            kill(self._host)

    def _leave(self) -> None:
        """Keep for the next agent what no agent has acknowledged."""
        new = self._folder / f"{LEFT}.new"
        lines = [frame for _, frame in (*self._sent, *self._waiting)]
        with contextlib.suppress(OSError):
            with open(new, "wb", opener=private) as file:  # the spec holds a secret
                file.write(b"S " + self._spec + b"\n" + b"".join(lines))
            new.replace(self._folder / LEFT)


def _kind(frame: bytes) -> str:
    try:
        return str(json.loads(frame.split(b" ", 2)[2])["kind"])
    except (ValueError, KeyError, TypeError):
        return ""


def clear(folder: Path, path: Path) -> None:
    """Remove the socket of a shim that ended or is gone, the folder that was made for it, and its address."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        if path.parent != folder:
            path.parent.rmdir()
        (folder / ADDRESS).unlink(missing_ok=True)


def main() -> int:
    """Entry point of ``python -m workers.shim``."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor, folder, keep_s, lossy = sys.argv[1:]
    listener = socket.socket(fileno=int(descriptor))
    try:
        Shim(listener, Path(folder), float(keep_s), frozenset(lossy.split(","))).run()
    finally:
        clear(Path(folder), Path(listener.getsockname()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
