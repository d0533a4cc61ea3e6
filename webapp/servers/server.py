"""What both embedded servers share: their folder, their process, and the wait until they answer."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from webapp.servers import process
from webapp.servers.errors import ServersError
from webapp.servers.logs import last_line, open_log
from webapp.servers.places import Account

START_S = 60.0  # PostgreSQL's recovery after a kill replays at most max_wal_size
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", "HOME": "/"}


@dataclass(slots=True, kw_only=True)
class Server:
    """One data folder and, while it runs, its server.

    name, label : in files and logs; to people.
    """

    home: Path
    account: Account | None
    port: int
    password: str
    log: Path
    child: subprocess.Popen[bytes] | None = field(default=None, init=False)

    name: ClassVar[str]
    label: ClassVar[str]

    @property
    def data(self) -> Path:
        return self.home / self.name

    def spawn(
        self, argv: Sequence[str | Path], death_signal: signal.Signals, wrong: Callable[[], str]
    ) -> None:
        """Start the server and wait until it answers.

        Parameters
        ----------
        wrong : why it does not answer now; empty where it does.

        Raises
        ------
        ServersError
            It ended or did not answer within START_S; the message holds its last line.
        """
        self.child = process.spawn(
            argv,
            death_signal=death_signal,
            output=open_log(self.log),
            account=self.account,
            env=ENVIRONMENT,
            umask=0o077,
        )
        deadline = time.monotonic() + START_S
        why = ""
        while time.monotonic() < deadline:
            if (status := self.child.poll()) is not None:
                raise ServersError(f"{self.label} ended with status {status}: {last_line(self.log)}")
            if not (why := wrong()):
                return
            time.sleep(0.03)
        raise ServersError(
            f"{self.label} did not answer within {START_S:.0f} s: {why}; {last_line(self.log)}"
        )
