"""The agent's end of its shims: starts them, finds them again after a restart, and says what is safe here."""

import contextlib
import logging
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from engine.errors import InputError
from engine.job.events.event import KINDS, Event
from engine.job.launch import LaunchSpec
from engine.private import private
from engine.run.host_process import HostProcess, LetGo
from engine.run.launcher import RankGroup
from workers.publisher import Publisher
from workers.shim import ADDRESS, LEFT, clear

log = logging.getLogger(__name__)

_LONGEST_PATH = 100  # bytes of a Unix socket's path, of which systems take 104 or 108
_PERIOD_S = 0.1
_LOST = -9  # the status of a host whose shim was killed: it ends with it
_LOSSY = ",".join(kind for kind, event in KINDS.items() if not event.vital)


class ShimHost:
    """A host behind a shim, as `RankGroup` takes it. What was dealt with is acknowledged once it is safe."""

    def __init__(
        self, connection: socket.socket, publisher: Publisher, child: "subprocess.Popen[bytes] | None"
    ) -> None:
        self._connection, self._publisher, self._child = connection, publisher, child
        self._reader = connection.makefile("rb")
        self._commands = threading.Lock()
        self._handled: deque[tuple[int, int]] = deque()  # (frame, position of the publisher after it)
        self._code: int | None = None
        self._over = threading.Event()  # the last frame was read, or the shim is gone
        self._let_go = threading.Event()
        self._acknowledging = threading.Thread(target=self._acknowledge, name="shim", daemon=True)

    @classmethod
    def launch(cls, spec: LaunchSpec, publisher: Publisher, keep_s: float) -> "ShimHost":
        """Start a shim and, behind it, the host of a spec. Raises OSError."""
        folder = Path(spec.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with _listener(folder) as listener, open(folder / "host.log", "ab", opener=private) as errors:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "workers.shim",
                    str(listener.fileno()),
                    str(folder),
                    f"{keep_s:g}",
                    _LOSSY,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[listener.fileno()],
                process_group=0,
            )
        host = cls(_connect(folder), publisher, child)
        host._send(b"L " + spec.to_json().encode())
        host.greeting()
        return host

    @classmethod
    def found(cls, folder: Path, publisher: Publisher) -> "ShimHost":
        """The host whose shim listens for `folder`. Raises OSError where none does."""
        return cls(_connect(folder), publisher, None)

    def greeting(self) -> bytes:
        """The spec with which the host was started; empty where it was not yet. Raises OSError."""
        line = self._reader.readline()
        if not line.startswith(b"S "):
            raise ConnectionResetError("the shim ended without a message")
        return line[2:].strip()

    def send(self, line: bytes) -> None:
        self._send(b"C " + line)

    def lines(self) -> Iterator[bytes]:
        self._acknowledging.start()
        with contextlib.suppress(OSError):
            for line in self._reader:
                kind, _, rest = line.rstrip(b"\n").partition(b" ")
                number, _, text = rest.partition(b" ")
                if kind == b"E":
                    yield text
                elif kind == b"D":
                    self._publisher.note_lost(int(text))
                else:
                    self._code = int(text)
                self._handled.append((int(number), self._publisher.position))
                if kind == b"X":
                    break
        if self._code is None and self._let_go.is_set():
            raise LetGo
        self._over.set()

    def wait(self) -> int:
        self._over.wait()
        return _LOST if self._code is None else self._code

    @property
    def ended(self) -> bool:
        return self._over.is_set()

    def kill(self) -> None:
        self._send(b"K")

    def let_go(self, patience_s: float) -> None:
        """Say what is safe by now and leave the shim alone; the agent ends."""
        self._let_go.set()
        if self._acknowledging.is_alive():
            self._acknowledging.join(patience_s)
        self._connection.close()

    @property
    def settled(self) -> bool:
        """Whether the shim is gone, or knows that all is safe here."""
        return self._over.is_set() and not self._acknowledging.is_alive()

    def _send(self, frame: bytes) -> None:
        with self._commands, contextlib.suppress(OSError):
            self._connection.sendall(frame + b"\n")

    def _acknowledge(self) -> None:
        last = False
        while not last:
            last = self._let_go.wait(_PERIOD_S) or (self._over.is_set() and not self._handled)
            number, safe = 0, self._publisher.safe
            while self._handled and self._handled[0][1] <= safe:
                number, _ = self._handled.popleft()
            if number:
                self._send(b"A %d" % number)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._child is not None and self._over.is_set():
            self._child.wait()


class LeftBehind:
    """What a host said that no agent has taken, of a shim that ended alone: a host that has ended.

    path : the file, which goes when all of it has been dealt with.
    """

    def __init__(self, path: Path, frames: Iterable[bytes]) -> None:
        self._path = path
        self._events: list[bytes] = []
        self._code = _LOST
        for frame in frames:
            kind, _, text = frame.split(b" ", 2)
            if kind == b"X":
                self._code = int(text)
            elif kind == b"E":
                self._events.append(text)

    def send(self, line: bytes) -> None:
        pass

    def lines(self) -> Iterator[bytes]:
        yield from self._events
        self._path.unlink(missing_ok=True)

    def wait(self) -> int:
        return self._code

    @property
    def ended(self) -> bool:
        return True

    def kill(self) -> None:
        pass


class Shims:
    """All shims of one agent.

    keep_s : for how long ranks go on without an agent.
    """

    def __init__(self, publisher: Publisher, keep_s: float) -> None:
        self._publisher, self._keep_s = publisher, keep_s
        self._hosts: list[ShimHost] = []

    def group(self, spec: LaunchSpec, on_event: Callable[[Event], None]) -> RankGroup:
        """The ranks of a spec, to be started."""
        return RankGroup(spec, on_event, self._launched)

    def found(
        self, folder: Path, on_event: Callable[[Event], None], ended: Callable[[LaunchSpec], Iterable[int]]
    ) -> RankGroup | None:
        """The ranks that an earlier life of the agent left at work, or their last words; None: neither.

        ended : of a spec, the ranks whose end is known here.
        """
        opened = self._at_work(folder) or _left_behind(folder)
        if opened is None:
            return None
        host, text = opened
        try:
            spec = LaunchSpec.from_json(text.decode())
        except (InputError, ValueError) as error:
            log.error("the shim in %s runs something that this version does not know: %s", folder, error)
            host.kill()
            return None
        return RankGroup(spec, on_event, lambda _: host, ended=ended(spec))

    def let_go(self, patience_s: float = 1.0) -> None:
        """Leave all shims alone, with what is safe acknowledged; the agent ends."""
        for host in self._hosts:
            host.let_go(patience_s)

    def _launched(self, spec: LaunchSpec) -> HostProcess:
        self._hosts = [host for host in self._hosts if not host.settled]
        self._hosts.append(ShimHost.launch(spec, self._publisher, self._keep_s))
        return self._hosts[-1]

    def _at_work(self, folder: Path) -> tuple[HostProcess, bytes] | None:
        host = None
        try:
            host = ShimHost.found(folder, self._publisher)
            text = host.greeting()
        except (OSError, ValueError):
            if host is not None:
                host.let_go(0.0)
            return None
        self._hosts.append(host)
        return host, text


def has_shim(folder: Path) -> bool:
    """Whether the run whose logs `folder` holds has a shim, or what one left behind."""
    return (folder / ADDRESS).exists() or (folder / LEFT).exists()


def _left_behind(folder: Path) -> tuple[HostProcess, bytes] | None:
    path = folder / LEFT
    try:
        first, *frames = path.read_bytes().splitlines()
    except (OSError, ValueError):
        return None
    return LeftBehind(path, frames), first[2:]


def _listener(folder: Path) -> socket.socket:
    """A listening Unix socket that only this user reaches, and its path in the file ADDRESS."""
    path = folder / "shim.sock"
    if len(str(path).encode()) > _LONGEST_PATH:
        path = Path(tempfile.mkdtemp(prefix="meridian-")) / "shim.sock"
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(4)
    (folder / ADDRESS).write_text(str(path), encoding="utf-8")
    return listener


def _connect(folder: Path) -> socket.socket:
    path = (folder / ADDRESS).read_text(encoding="utf-8")
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        clear(folder, Path(path))
        raise
    return connection
