"""Both embedded servers of one folder: the lock, the passwords, the ports, start and stop in order."""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from webapp.servers.endpoints import Endpoints, read_state, state_file
from webapp.servers.errors import AlreadyRunning, ServersError
from webapp.servers.places import server_account, settle, write_private
from webapp.servers.postgres import Postgres
from webapp.servers.valkey import Valkey

LEAST_FREE_MB = (
    150  # a new PostgreSQL cluster takes 40 MB, one WAL segment 16, programs outside the checkout 42
)

LEAST_BROKER_MB = 256  # a quarter of it is what all clients together may be owed


class EmbeddedServers:
    """PostgreSQL and Valkey under one `var` folder, owned by this process while it lives.

    A context manager; `start` and `stop` do the same by hand. Only the main thread may start them.

    Parameters
    ----------
    var : the folder of the installation; its ``servers`` holds the data, ``servers.json`` the URLs.
    want : which of the two to run, where the other is given by a URL.
    """

    def __init__(self, var: Path, want: tuple[str, ...] = ("postgres", "valkey")) -> None:
        self.var = var.absolute()
        self.want = want
        self.servers: list[Postgres | Valkey] = []
        self._lock: IO[str] | None = None

    def __enter__(self) -> "EmbeddedServers":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start what is wanted and write ``servers.json``; on failure stop what was started.

        Raises
        ------
        AlreadyRunning
            Another process runs the servers of this folder.
        ServersError
            Anything else, in one line: disk full, no rights, a server that ends at once.
        """
        try:
            with _disk_full_in_words(self.var):
                self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        account = server_account()
        home, binaries = settle(self.var, account)
        self._lock = _take_lock(self.var)
        _need_space(home)
        words = _passwords(home)
        logs = self.var / "log"
        if "postgres" in self.want:
            self._start_one(
                Postgres(
                    home=home,
                    bin=binaries.postgres_bin,
                    account=account,
                    port=self._port("postgres"),
                    password=words["postgres"],
                    log=logs / "postgres.log",
                )
            )
        if "valkey" in self.want:
            self._start_one(
                Valkey(
                    home=home,
                    program=binaries.valkey_server,
                    account=account,
                    port=self._port("valkey"),
                    password=words["valkey"],
                    log=logs / "valkey.log",
                    memory_mb=_broker_mb(),
                )
            )
        self._write_state()

    def stop(self) -> None:
        """Stop Valkey, then PostgreSQL, and let go of the folder; harmless if nothing runs."""
        for server in reversed(self.servers):
            server.stop()
        self.servers.clear()
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._write_state()
            self._lock.close()
            self._lock = None

    def restart(self, name: str) -> None:
        """Start one server again, on its old port, after it died.

        Raises
        ------
        ServersError
            It does not come up.
        """
        for server in self.servers:
            if server.name == name:
                with _disk_full_in_words(self.var):
                    server.stop()
                    server.start()
                    self._write_state()

    def free_mb(self) -> int:
        """Megabytes free where the servers keep their data and the site its files, whichever has less."""
        places = (self.var, (self.var / "servers").resolve())
        return min(shutil.disk_usage(place).free for place in places if place.exists()) // 1_000_000

    def _start_one(self, server: Postgres | Valkey) -> None:
        self.servers.append(server)
        server.start()

    def _port(self, name: str) -> int:
        """The port of last time, so that clients find a restarted server; a free one where it is taken."""
        last = read_state(self.var).get(name, {}).get("port")
        return last if isinstance(last, int) and _is_free(last) else _free_port()

    def _write_state(self) -> None:
        state: dict[str, Any] = {"pid": os.getpid() if self.servers else None}
        before = read_state(self.var)
        for name in ("postgres", "valkey"):
            state[name] = {"port": before.get(name, {}).get("port")}
        for server in self.servers:
            pid = server.child.pid if server.child else None
            state[server.name] = {"port": server.port, "pid": pid, "url": server.url, "log": str(server.log)}
        write_private(state_file(self.var), json.dumps(state, indent=1))


@contextlib.contextmanager
def running(var: Path) -> Iterator[Endpoints]:
    """Run both servers in the folder `var` for the duration of the block; for tests and scripts.

    Only from the main thread, and whatever DATABASE_URL and VALKEY_URL say.
    """
    var.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0 and var.stat().st_uid == 0:
        # mkdtemp closes its folder to all others: let the servers' account pass, so that data stays inside.
        var.chmod(var.stat().st_mode | 0o011)
    with EmbeddedServers(var) as embedded:
        urls = {server.name: server.url for server in embedded.servers}
        yield Endpoints(database_url=urls["postgres"], valkey_url=urls["valkey"])


def _take_lock(var: Path) -> IO[str]:
    file = (var / "servers.lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        text = file.read().strip()
        file.close()
        raise AlreadyRunning(var, int(text) if text.isdigit() else None) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _need_space(home: Path) -> None:
    free_mb = shutil.disk_usage(home).free // 1_000_000
    if free_mb < LEAST_FREE_MB:
        raise ServersError(f"disk full: {free_mb} MB free at {home}, the servers need {LEAST_FREE_MB} MB")


@contextlib.contextmanager
def _disk_full_in_words(var: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ServersError(f"disk full: nothing more can be written under {var}") from None
        if isinstance(error, PermissionError):
            raise ServersError(
                f"no permission to write {error.filename}: who started it last, root?"
            ) from None
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EROFS, errno.ENAMETOOLONG):
            raise ServersError(
                f"MERIDIAN_VAR: {str(var)!r}: must be a folder that can be written ({error.strerror})"
            ) from None
        raise


def _broker_mb() -> int:
    """The most that Valkey may hold, MERIDIAN_BROKER_MB."""
    text = os.environ.get("MERIDIAN_BROKER_MB") or "1024"
    if not text.isascii() or not text.isdecimal() or int(text) < LEAST_BROKER_MB:
        raise ServersError(f"MERIDIAN_BROKER_MB={text}: must be whole megabytes, at least {LEAST_BROKER_MB}")
    return int(text)


def _passwords(home: Path) -> dict[str, str]:
    """The servers' passwords, made once; kept next to the data, because they belong together."""
    path = home / "passwords.json"
    if path.exists():
        passwords: dict[str, str] = json.loads(path.read_text())
        return passwords
    passwords = {name: secrets.token_urlsafe(24) for name in ("postgres", "valkey")}
    write_private(path, json.dumps(passwords))
    return passwords


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
