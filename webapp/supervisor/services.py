"""What the supervisor runs, and with what environment."""

import os
import re
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from webapp.servers.errors import ServersError
from webapp.servers.places import demo_model
from webapp.supervisor.given_files import SECRET

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
# A node must work with its own broker user alone: what opens the site's doors is kept from it.
_NOT_FOR_NODES = frozenset(
    ("DJANGO_SETTINGS_MODULE", "MERIDIAN_EMAIL_PASSWORD", *SECRET, *(f"{name}_FILE" for name in SECRET))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One long-lived child.

    Attributes
    ----------
    stage : children of the lowest stage are stopped first, those of one stage together.
    patience_s : how long it has to end after `stop_signal`.
    listening : a bound socket that each start of it has as standard input: who connects while it is down
        waits for the next.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stage: int
    patience_s: float = 4.0
    stop_signal: signal.Signals = signal.SIGTERM
    listening: socket.socket | None = None


DEMO_MODEL_STEPS = 100  # from 5.5 to about 2.1 nats a byte: words, if no sense
AGENTS, BACKGROUND, WEB = range(3)
KEEP_RANKS_S = "60"  # of nodes on the site's own machine: time to start it again after it was killed


def site_services(
    port: int, var: Path, *, host: str = "127.0.0.1", listening: socket.socket | None = None
) -> list[Service]:
    """The processes of the site itself: web, control and search workers, beat, ingest.

    listening : of the web process; without it that listens on `host` and `port` by itself.
    """
    env = site_environment(var)
    # Celery tells of each task, every 2 s, and warns root, who runs this demo on purpose, in five lines.
    quiet = {"MERIDIAN_LOG": "WARNING", "PYTHONWARNINGS": "ignore:You're running the worker", **env}
    python = sys.executable
    celery = (python, "-m", "celery", "-q", "-A", "webapp.celery")
    return [
        Service(
            name="web",
            argv=(python, "-m", "webapp.edge.uvicorn_server", "--host", host, "--port", str(port)),
            env=env,
            stage=WEB,
            listening=listening,
        ),
        Service(
            name="control",
            # Threads: one process, and its tasks wait for the database, not for the processor.
            argv=(*celery, "worker", "-Q", "control", "-P", "threads", "-c", "2", "-l", "WARNING", *_QUIET),
            env=quiet,
            stage=BACKGROUND,
        ),
        Service(
            name="search",
            # What computes for minutes has a process of its own, or the reconciler would wait for it.
            argv=(
                *celery,
                "worker",
                "-Q",
                "search",
                "-n",
                "search@%h",
                "-P",
                "threads",
                "-c",
                "1",
                "-l",
                "WARNING",
                *_QUIET,
            ),
            env=quiet,
            stage=BACKGROUND,
        ),
        Service(
            name="beat",
            argv=(*celery, "beat", "-l", "WARNING", "-s", str(var / "beat-schedule"), "--pidfile="),
            env=quiet,
            stage=BACKGROUND,
        ),
        Service(name="ingest", argv=(python, "manage.py", "ingest"), env=env, stage=BACKGROUND),
    ]


_QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


def agent_services(var: Path) -> list[Service]:
    """One agent per ``var/nodes/<name>.env``.

    Raises
    ------
    ServersError
        A line of such a file is not NAME=value.
    """
    base = {name: value for name, value in site_environment(var).items() if name not in _NOT_FOR_NODES}
    return [
        Service(
            name=path.stem,
            argv=(sys.executable, "-m", "workers.agent"),
            env={"MERIDIAN_KEEP_RANKS_S": KEEP_RANKS_S, **base, **read_env(path)},
            stage=AGENTS,
            stop_signal=signal.SIGINT,  # ends the ranks too, as SIGTERM does not
            patience_s=9.0,  # its own steps take at most 8 s; killed, it could not say how its ranks ended
        )
        for path in sorted((var / "nodes").glob("*.env"))
    ]


def demo_model_service(var: Path) -> Service | None:
    """What trains the tiny Llama that the demo serves, on the demo's own text; None where it is there."""
    folder = demo_model(var)
    if folder.exists():
        return None
    command = (sys.executable, "-m", "engine.cli", "prefill", "model", str(folder))
    return Service(
        name="model",
        argv=("nice", "-n", "10", *command, "--steps", str(DEMO_MODEL_STEPS)),
        env=site_environment(var),
        stage=BACKGROUND,
    )


def site_environment(var: Path) -> dict[str, str]:
    """This process's environment, with the folder of the installation said outright."""
    return {
        **os.environ,
        "MERIDIAN_VAR": str(var),
        "PYTHONUNBUFFERED": "1",
        # The servers' own threads of these libraries would fight the ranks for two cores.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        # Many small processes: glibc's arenas per thread would grow for hours.
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),
    }


def read_env(path: Path) -> dict[str, str]:
    """Read NAME=value lines; empty lines and # comments are skipped, quotes around a value are dropped."""
    values = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip().removeprefix("export ")
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise ServersError(f"{path}, line {number}: must be NAME=value")
        value = value.strip()
        values[name] = (
            value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
        )
    return values
