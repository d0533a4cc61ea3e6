"""The embedded PostgreSQL: one foreground server on 127.0.0.1, durable, with a password."""

import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from webapp.servers import process
from webapp.servers.errors import ServersError
from webapp.servers.places import own
from webapp.servers.server import ENVIRONMENT, Server
from webapp.servers.stale import end_stale

USER = "meridian"
DATABASE = "meridian"
INITDB = (
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--locale=C",  # messages and formats; text compares by the next two, whatever is installed
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
)
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # TCP only: a socket's path may have 107 bytes, checkouts are deeper
    # Nothing acknowledged is lost. These are the defaults; said here because the product promises them.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # One machine, no replicas, little memory: fixed and small, so that it does not creep upwards.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "shared_buffers": "8MB",  # the kernel caches the rest; every page touched counts once per server process
    "max_connections": "100",
    "io_method": "sync",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(slots=True, kw_only=True)
class Postgres(Server):
    """The cluster and its server."""

    bin: Path

    name = "postgres"
    label = "PostgreSQL"

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}"

    def start(self) -> None:
        """Make the cluster if there is none, start the server, wait until it answers. Raises ServersError."""
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        clear_stale(self.data)
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        self.spawn(
            [self.bin / "postgres", "-D", self.data, "-p", str(self.port), *settings],
            signal.SIGINT,
            self._wrong,
        )
        if self._psql(f"SELECT count(*) FROM pg_database WHERE datname = '{DATABASE}'") == "0":
            self._psql(f"CREATE DATABASE {DATABASE}")

    def stop(self) -> None:
        """Fast shutdown (clients are cut off, data is written), harder if it does not end."""
        if self.child is not None:
            process.stop(self.child, (signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0))

    def _initialise(self) -> None:
        # Into a folder next to it: a killed initdb leaves half a cluster that looks like a whole one.
        new = self.home / "postgres.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        own(new, self.account, 0o700)
        password_file = self.home / "postgres.password"
        password_file.touch(0o600)
        own(password_file, self.account, 0o600)
        password_file.write_text(self.password)
        try:
            self._run(
                [self.bin / "initdb", "-D", new, "-U", USER, f"--pwfile={password_file}", *INITDB],
                what="PostgreSQL could not make its data folder",
            )
        finally:
            password_file.unlink(missing_ok=True)
        new.rename(self.data)

    def _wrong(self) -> str:
        probe = subprocess.run(
            [self.bin / "pg_isready", *self._at], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        return probe.stdout.strip() or "no answer" if probe.returncode else ""

    @property
    def _at(self) -> list[str]:
        """Where its own programs find it."""
        return ["-h", "127.0.0.1", "-p", str(self.port), "-d", "postgres", "-U", USER]

    def _psql(self, query: str) -> str:
        output = self._run(
            [self.bin / "psql", *self._at, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", query],
            what="PostgreSQL runs, but could not make its database",
            password=self.password,
        )
        return output.strip()

    def _run(self, command: Sequence[Path | str], *, what: str, password: str | None = None) -> str:
        program = subprocess.run(
            list(map(str, command)),
            env=ENVIRONMENT | ({"PGPASSWORD": password} if password else {}),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            user=None if self.account is None else self.account.uid,
            group=None if self.account is None else self.account.gid,
            extra_groups=None if self.account is None else [],
        )
        if program.returncode != 0:
            lines = [line for line in (program.stderr or program.stdout).splitlines() if line.strip()]
            telling = [line for line in lines if "error" in line.lower() or "could not" in line.lower()]
            raise ServersError(f"{what}: {(telling or lines or ['no message'])[0].strip()}")
        return str(program.stdout)


def clear_stale(data: Path) -> None:
    """Make way for a start on `data`, whose lock this process holds, after whatever ended the last server.

    PostgreSQL itself removes a postmaster.pid whose process is gone, but gives up for good where that
    number now belongs to another process of its user. A postmaster of this very folder that still lives
    (an orphan, or one that is just ending) is stopped.

    Raises
    ------
    ServersError
        The orphan does not end.
    """
    end_stale(
        data / "postmaster.pid", lambda command: _is_postmaster_of(command, data), signal.SIGINT, "PostgreSQL"
    )


def _is_postmaster_of(command: str, data: Path) -> bool:
    return "postgres" in command.split(" ", 1)[0] and f"-D {data} " in f"{command} "
