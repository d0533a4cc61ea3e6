"""Hosts of ranks as forks of one process that has imported what they need: 5 s of a core less for each run.

``python -m tests.runtime.hosts FD`` is that process; it ends when the other end of the socket FD is closed.
What a host does begins with its first line of input, which it reads in either way.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import IO, Any

# What is read when Python starts and when torch is loaded. A host is given the rest when it is forked, and
# the folders of PYTHONPATH.
_READ_AT_START = ("PYTHON", "LD_", "THP_", "OMP_", "MKL_")


class Forked:
    """What engine.run.host_process uses of a Popen, for a process that is another one's child."""

    def __init__(self, pid: int, stdin: int, stdout: int, status: int) -> None:
        self.pid = pid
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb")
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
        self.returncode: int | None = None
        self._status = status
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        """The exit status, as Popen gives it; None while it runs."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        status = self._read(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a host", timeout or 0.0)
        return status

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None and _ready(self._status, timeout):
            with self._reading:  # of several threads that wait, one finds the status in the pipe
                if self.returncode is None:
                    # Nothing: what forks hosts was killed, and with it what it knew.
                    status = os.read(self._status, 64)
                    self.returncode = int(status) if status else -signal.SIGKILL
        return self.returncode

    def __del__(self) -> None:
        os.close(self._status)


class Nursery:
    """The process that forks hosts, as its owner sees it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "tests.runtime.hosts", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
            )

    def may_start(self, environment: dict[str, str]) -> bool:
        """Whether a host of that environment is the same, forked or started."""
        return _read_at_start(environment) == _read_at_start(self._environment)

    def start(self, environment: dict[str, str], stderr: IO[bytes]) -> Forked:
        """Fork a host in the directory where we are now."""
        (stdin, to), (of, stdout), (status, end) = os.pipe(), os.pipe(), os.pipe()
        given = [stdin, stdout, stderr.fileno(), end]
        try:
            with self._asking:
                socket.send_fds(self._socket, [json.dumps([os.getcwd(), environment]).encode()], given)
                pid = int(self._socket.recv(64))
        finally:
            for fd in (stdin, stdout, end):
                os.close(fd)
        return Forked(pid, to, of, status)

    def close(self) -> None:
        """End it; hosts that still run are their owners' concern."""
        self._socket.close()
        self._process.wait()


def _ready(fd: int, timeout: float | None) -> bool:
    """Whether there is something to read, or the other end is closed; a late worker has fds past select's."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else 1e3 * timeout))


def _read_at_start(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name != "PYTHONPATH"
    }


def main(fd: int) -> None:
    """Fork a host for each message, and tell how each ended."""
    from engine.run import host, host_start
    from engine.schedule.compiled import load_kernels
    from engine.train.memory import share

    host_start.import_ahead()
    load_kernels()
    share()
    owner = socket.socket(fileno=fd)
    running: dict[int, int] = {}
    while True:
        if _ready(owner.fileno(), 0.02 if running else None):
            message, fds, _, _ = socket.recv_fds(owner, 1 << 20, 4)
            if not message:
                return
            child = os.fork()
            if child == 0:
                _be_host(host.main, message, fds, [owner.detach(), *running.values()])
            for given in fds[:3]:
                os.close(given)
            with contextlib.suppress(OSError):  # here too: who is told of it may end its group at once
                os.setpgid(child, child)
            running[child] = fds[3]
            owner.send(str(child).encode())
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            end = running.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):
                os.write(end, str(os.waitstatus_to_exitcode(ended[1])).encode())
            os.close(end)


def _be_host(run: Any, message: bytes, fds: list[int], ours: list[int]) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        directory, environment = json.loads(message)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        # Behind the directory where we are, as Python has them; an empty one is that directory too.
        sys.path[1:1] = [
            f for f in environment.get("PYTHONPATH", "").split(os.pathsep) if f and f not in sys.path
        ]
        for number, given in enumerate(fds[:3]):
            os.dup2(given, number)
        for given in (*fds, *ours):
            os.close(given)
        code = run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # Python would take apart all that it has imported, for a second of a core
