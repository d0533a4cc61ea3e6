"""`python -m webapp.supervisor.one PART`: this process becomes one part of the site; for containers, systemd.

PART is `web`, `control`, `beat` or `ingest` (as the supervisor starts them), `migrate` (checks the settings,
brings the database up to date, writes the nodes' broker users; ends), or `manage` with the arguments of
manage.py. Secrets may come from files (`webapp.supervisor.given_files`). MERIDIAN_BIND and MERIDIAN_PORT say
where `web` listens (127.0.0.1, 8000). Exit status 2 and one line where a setting is wrong.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from engine.errors import InputError
from webapp.servers.endpoints import given
from webapp.servers.places import var_folder
from webapp.supervisor.children import ROOT
from webapp.supervisor.given_files import with_files_read
from webapp.supervisor.services import site_services

MIGRATE = (
    ("check", "--deploy", "--fail-level", "WARNING"),
    ("migrate", "--no-input"),
    ("sync_node_acl",),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the part; returns only where that cannot be."""
    part, *rest = (sys.argv[1:] if arguments is None else list(arguments)) or [""]
    try:
        environ = with_files_read(os.environ)
        os.environ.update(environ)
        given(environ)
        commands = _commands(part, rest, environ)
    except InputError as error:
        sys.stderr.write(f"meridian: {error}\n")
        return 2
    os.chdir(ROOT)
    *first, (argv, env) = commands
    for one, its_env in first:
        if status := subprocess.run(one, env=its_env, check=False).returncode:
            return status
    os.execve(argv[0], argv, env)


Command = tuple[tuple[str, ...], dict[str, str]]


def _commands(part: str, rest: Sequence[str], environ: Mapping[str, str]) -> list[Command]:
    """What to run, in order, each with its environment; the last takes the place of this process."""
    manage = (sys.executable, "manage.py")
    if part == "migrate" and not rest:
        return [((*manage, *step), dict(environ)) for step in MIGRATE]
    if part == "manage":
        return [((*manage, *rest), dict(environ))]
    services = {
        one.name: one
        for one in site_services(
            _port(environ), var_folder(), host=environ.get("MERIDIAN_BIND") or "127.0.0.1"
        )
    }
    if part not in services or rest:
        raise InputError("PART", " ".join([part, *rest]), f"one of {', '.join(services)}, migrate, manage …")
    return [(services[part].argv, dict(services[part].env))]


def _port(environ: Mapping[str, str]) -> int:
    text = environ.get("MERIDIAN_PORT") or "8000"
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise InputError("MERIDIAN_PORT", text, "must be a port, 1 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
