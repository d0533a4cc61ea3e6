"""Whether a Valkey that runs also answers: asked without ever waiting, by whoever has a loop of its own."""

import contextlib
import socket
import time

EVERY_S = 1.0
LONGEST_LOOK_S = 1.0


class Pulse:
    """One question at a time to the server on `port` of this machine."""

    def __init__(self, port: int, password: str) -> None:
        self._address = ("127.0.0.1", port)
        self._question = f"AUTH default {password}\r\nPING\r\n".encode()
        self._line: socket.socket | None = None
        self._unsent = b""
        self._answer = b""
        self._silent_s = 0.0
        self._looked = self._asked = time.monotonic()

    def silent_s(self) -> float:
        """For how long the server has owed an answer, seconds; asks again where it owes none.

        Call it often. Of time between two calls at most LONGEST_LOOK_S counts: while this process was
        stopped, the server may have been too.
        """
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LONGEST_LOOK_S), now
        if self._line is None and self._silent_s == 0.0 and now - self._asked < EVERY_S:
            return 0.0
        if self._line is None:
            self._ask(now)
        if self._answered():
            self.close()
            self._silent_s = 0.0
        else:
            self._silent_s += passed
        return self._silent_s

    def close(self) -> None:
        """Hang up; the next look asks again."""
        if self._line is not None:
            self._line.close()
        self._line = None

    def _ask(self, now: float) -> None:
        self._asked = now
        self._unsent, self._answer = self._question, b""
        self._line = socket.socket()
        self._line.setblocking(False)
        self._line.connect_ex(self._address)

    def _answered(self) -> bool:
        assert self._line is not None
        try:
            with contextlib.suppress(BlockingIOError):
                self._unsent = self._unsent[self._line.send(self._unsent) :] if self._unsent else b""
            with contextlib.suppress(BlockingIOError):
                part = self._line.recv(1024)
                self._answer += part
                if not part:
                    self.close()
        except OSError:  # refused, or it ended: that is for whoever watches the process
            self.close()
        lines = self._answer.split(b"\r\n")[:-1]
        if any(line.startswith(b"-BUSY") for line in lines):  # a script runs: it answers nobody else either
            self.close()
            return False
        return len(lines) > 1 or any(line.startswith(b"-") for line in lines)
