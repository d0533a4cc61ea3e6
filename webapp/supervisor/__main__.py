"""`python -m webapp.supervisor [--port 8000] [--demo]`: the whole site on this machine, until Ctrl-C.

Exit status: 0 stopped by Ctrl-C or SIGTERM, 1 something needed cannot be kept running, 2 it cannot start
(port in use, already running, no disk left, a bad value in the environment).
"""

import argparse
import errno
import socket
import sys
import time
import urllib.error
import urllib.request
from typing import NoReturn

from engine.errors import InputError
from webapp.servers.embedded import EmbeddedServers
from webapp.servers.endpoints import given
from webapp.servers.errors import ServersError
from webapp.servers.given import check_given
from webapp.servers.places import demo_key, var_folder
from webapp.supervisor.console import Console
from webapp.supervisor.services import (
    BACKGROUND,
    Service,
    agent_services,
    demo_model_service,
    site_environment,
    site_services,
)
from webapp.supervisor.supervisor import Failed, Interrupted, Refused, Supervisor

LOGINS = "log in as admin / meridian-demo, operator / meridian-demo, or tenant / meridian-demo"
READY_S = 60.0


def main(arguments: list[str] | None = None) -> int:
    """Run the site; see the module."""
    options = _options(arguments)
    console = Console()
    try:
        listening = _bound(options.port)
        database, valkey = given()
        check_given(database, valkey)
        want = tuple(name for name, url in (("postgres", database), ("valkey", valkey)) if not url)
        servers = EmbeddedServers(var_folder(), want) if want else None
        supervisor = Supervisor(console, servers)
        supervisor.install_signals()
        if servers is not None:
            servers.start()
    except (ServersError, InputError) as error:
        sys.stderr.write(f"meridian: {error}\n")
        return 2
    try:
        _run(supervisor, listening, demo=options.demo, sell=options.sell is not False)
    except Interrupted:
        supervisor.say("stopping")
        return 0
    except Failed:
        return 1
    except (ServersError, Refused) as error:
        sys.stderr.write(f"meridian: {str(error).removeprefix('meridian: ')}\n")
        return 2
    finally:
        supervisor.stop()
        supervisor.say("stopped")


def _run(supervisor: Supervisor, listening: socket.socket, *, demo: bool, sell: bool) -> NoReturn:
    var, port = var_folder(), listening.getsockname()[1]
    # At low priority; a few seconds of one core.
    making = supervisor.begin(model) if demo and sell and (model := demo_model_service(var)) else None
    _manage(supervisor, "migrate", "--no-input", "-v", "0")
    if making and supervisor.finish(making):
        supervisor.say("there is no model to serve: the demo trains without prefill")
    if demo:
        _manage(supervisor, "seed_demo", *([] if sell else ["--no-sell"]))
    supervisor.start([*site_services(port, var, listening=listening), *agent_services(var)])
    _wait_ready(supervisor, port)
    if demo:
        supervisor.say(LOGINS)
        if sell and (key := demo_key(var)).exists():
            supervisor.say(f"the tenant's API key: export MERIDIAN_KEY=$(cat {key}); /prefill/ has examples")
    supervisor.say("Ctrl-C stops everything")
    supervisor.watch(gives_up=False)
    raise Interrupted  # watch ends only by an exception


def _wait_ready(supervisor: Supervisor, port: int) -> None:
    """Watch until the site is ready. One that answers, but lacks something, runs on and says what."""
    deadline = time.monotonic() + READY_S
    supervisor.watch(until=lambda: _answers(port, "readyz") or time.monotonic() > deadline)
    if _answers(port, "readyz"):
        supervisor.say(f"Meridian is ready: http://127.0.0.1:{port}/")
    elif _answers(port, "healthz"):
        supervisor.say(
            f"Meridian runs, but is not ready: http://127.0.0.1:{port}/readyz says what is missing"
        )
    else:
        supervisor.say(f"the site does not answer on port {port} after {READY_S:.0f} s: stopping")
        raise Failed


def _manage(supervisor: Supervisor, *command: str) -> None:
    argv = (sys.executable, "manage.py", *command)
    supervisor.run_once(
        Service(name=command[0], argv=argv, env=site_environment(var_folder()), stage=BACKGROUND)
    )


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every failed start does; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"meridian: {message.removeprefix('argument ')}\n")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m webapp.supervisor", description="Run Meridian on this machine.")
    parser.add_argument("--port", type=_port, default=8000, help="of the site, on 127.0.0.1 (8000)")
    parser.add_argument(
        "--demo", action="store_true", help="make the demo's users, data centres, nodes and run"
    )
    parser.add_argument(
        "--sell",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="with --demo: train a tiny Llama, which its run serves in its bubbles (the default), or not",
    )
    options = parser.parse_args(arguments)
    if options.sell is not None and not options.demo:
        parser.error("--sell, --no-sell: of the demo's run; give --demo, too")
    return options


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a port, 1 to 65535")
    return int(text)


def _bound(port: int) -> socket.socket:
    """The socket of the web process; nobody is heard on it before that starts."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(("127.0.0.1", port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ServersError(
                f"port {port} is in use: choose another, as in PORT={port + 1} make demo"
            ) from None
        raise ServersError(f"port {port} cannot be used: {error.strerror}") from None
    return bound


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(main())
