"""`python -m webapp.supervisor.probe [PART]`: exit status 0 where that part of the site lives, else 1.

For health checks of containers. `web` (the default) is asked over HTTP on this machine; `ingest`, `search`,
and `control` and `beat` together, leave a beat in the database while they work. No Django: it runs every few
seconds for ever.
"""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

import psycopg

from engine.errors import InputError
from webapp.supervisor.given_files import with_files_read

# Name of the beat (webapp.computations.liveness), and the most seconds since it.
BEATS = {
    "ingest": ("ingest", 30),
    "control": ("reconciler", 60),
    "beat": ("reconciler", 60),
    "search": ("search", 60),
}
ANSWER_WITHIN_S = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask; see the module."""
    part, *_ = (sys.argv[1:] if arguments is None else list(arguments)) or ["web"]
    try:
        environ = with_files_read(os.environ)
        trouble = _web(environ) if part == "web" else _beat(part, environ)
    except InputError as error:
        trouble = str(error)
    sys.stdout.write(f"{trouble or 'well'}\n")
    return 1 if trouble else 0


def host_header(environ: Mapping[str, str]) -> str:
    """A name that the site answers to: the first of MERIDIAN_HOSTS."""
    first = environ.get("MERIDIAN_HOSTS", "").split(",")[0].strip()
    if first.startswith("."):
        return f"www{first}"
    return first if first and first != "*" else "127.0.0.1"


def _web(environ: Mapping[str, str]) -> str:
    port = environ.get("MERIDIAN_PORT") or "8000"
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/healthz", headers={"Host": host_header(environ)}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:
            return "" if answer.status == 200 else f"/healthz answers {answer.status}"
    except (urllib.error.URLError, OSError) as error:
        return f"/healthz does not answer ({getattr(error, 'code', type(error).__name__)})"


def _beat(part: str, environ: Mapping[str, str]) -> str:
    if part not in BEATS:
        raise InputError("PART", part, f"one of web, {', '.join(BEATS)}")
    name, late_s = BEATS[part]
    try:
        with psycopg.connect(environ.get("DATABASE_URL", ""), connect_timeout=ANSWER_WITHIN_S) as line:
            beat = line.execute(
                "SELECT extract(epoch FROM now() - at) FROM computations_beat WHERE name = %s", [name]
            ).fetchone()
    except psycopg.Error as error:
        return f"the database does not answer ({type(error).__name__})"
    if beat is None:
        return f"{name} has not started yet"
    return f"{name} has been silent for {float(beat[0]):.0f} s" if beat[0] > late_s else ""


if __name__ == "__main__":
    sys.exit(main())
