"""The embedded Valkey: broker, channel layer and event streams; append-only, with users and a password."""

import hashlib
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path

from webapp.servers import process
from webapp.servers.places import own, write_private
from webapp.servers.pulse import Pulse
from webapp.servers.server import Server
from webapp.servers.stale import end_stale

NEVER = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class Valkey(Server):
    """Its data and its server."""

    program: Path
    memory_mb: int = 1024
    _pulse: Pulse | None = field(default=None, init=False)

    name = "valkey"
    label = "Valkey"

    @property
    def url(self) -> str:
        return f"redis://default:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Write its configuration, start the server, wait until it has loaded its data and answers.

        Raises ServersError.
        """
        self.data.mkdir(exist_ok=True)
        own(self.data, self.account, 0o700)
        end_stale(self.data / "valkey.pid", self._is_ours, signal.SIGTERM, "Valkey")
        users, configuration = self.data / "users.acl", self.data / "valkey.conf"
        known = users.read_text(encoding="utf-8") if users.exists() else ""
        write_private(users, _with_default_user(known, self.password), self.account)
        write_private(configuration, self._configuration(), self.account)
        self.spawn([self.program, configuration], signal.SIGTERM, lambda: _wrong(self.port, self.password))
        self._pulse = Pulse(self.port, self.password)

    def silent_s(self) -> float:
        """For how long it has run without an answer, seconds (webapp/servers/pulse.py)."""
        return self._pulse.silent_s() if self._pulse is not None else 0.0

    def stop(self) -> None:
        """Orderly shutdown; every command that was answered is on disk already."""
        if self._pulse is not None:
            self._pulse.close()
            self._pulse = None
        if self.child is not None:
            process.stop(self.child, (signal.SIGTERM, 10.0))

    def _is_ours(self, command: str) -> bool:
        return command.endswith(str(self.data / "valkey.conf"))

    def _configuration(self) -> str:
        # `appendfsync always`, not `everysec`: a task or event that Valkey acknowledged is on disk. Telemetry
        # comes in pipelined batches, one fsync each, and publishing to sockets is not written at all.
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": f'"{self.data}"',
            "aclfile": f'"{self.data / "users.acl"}"',
            "appendonly": "yes",
            "appendfsync": "always",
            "aof-load-truncated": "yes",  # the half-written last command of a kill was never acknowledged
            "save": '""',
            # Full, it refuses writes and forgets nothing: what it acknowledged is never lost.
            "maxmemory": f"{self.memory_mb}mb",
            "maxmemory-policy": "noeviction",
            # Whoever asks without reading the answers, or sends without an end, is cut off instead of all.
            "maxmemory-clients": "25%",
            "client-output-buffer-limit": "normal 128mb 0 0",
            "client-query-buffer-limit": "64mb",
            "proto-max-bulk-len": "32mb",
            # Long answers are copied, or the server does not count them against these bounds.
            "min-string-size-avoid-copy-reply": NEVER,
            "min-string-size-avoid-copy-reply-threaded": NEVER,
            "daemonize": "no",
            "pidfile": f'"{self.data / "valkey.pid"}"',
            "set-proc-title": "no",  # its command line says whose it is
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())


def _with_default_user(acl: str, password: str) -> str:
    """Return the user list with the default user's line renewed; the nodes' users stay as they are."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    others = [line for line in acl.splitlines() if line.strip() and not line.startswith("user default ")]
    return "\n".join([f"user default on sanitize-payload #{digest} ~* &* +@all", *others]) + "\n"


def _wrong(port: int, password: str) -> str:
    """What it answers to PING; empty where that is PONG.

    Over a bare socket (inline protocol): the supervisor need not hold a client library.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(f"AUTH default {password}\r\nPING\r\n".encode())
            received = b""
            while received.count(b"\r\n") < 2:
                part = connection.recv(256)
                if not part:
                    break
                received += part
    except OSError as error:
        return str(error)
    answer = received.decode(errors="replace").strip().split("\r\n")[-1]
    return "" if answer == "+PONG" else answer or "no answer"
