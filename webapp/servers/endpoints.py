"""Where PostgreSQL and Valkey are: given by URL, or the embedded ones of this installation."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import InputError
from webapp.servers import process
from webapp.servers.errors import NotRunning
from webapp.servers.places import var_folder

# Clients know Redis's schemes only; the protocol is the same.
_VALKEY_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}


class Endpoints(NamedTuple):
    """The URLs of the two servers, passwords included."""

    database_url: str
    valkey_url: str


def state_file(var: Path) -> Path:
    """The file (mode 0600) in which the process that runs the servers records their URLs and ports."""
    return var / "servers.json"


def read_state(var: Path) -> dict[str, Any]:
    """Return what the last process that ran the servers recorded; empty if none did."""
    try:
        state = json.loads(state_file(var).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def given(environ: Mapping[str, str] | None = None) -> tuple[str | None, str | None]:
    """Return DATABASE_URL and VALKEY_URL as far as they are set.

    Raises
    ------
    InputError
        One has a scheme that is not PostgreSQL's, Valkey's or Redis's.
    """
    environ = os.environ if environ is None else environ
    database = environ.get("DATABASE_URL") or None
    if database and database.partition("://")[0] not in ("postgres", "postgresql"):
        raise InputError("DATABASE_URL", _without_password(database), "must start with postgresql://")
    valkey = environ.get("VALKEY_URL") or None
    if valkey:
        scheme, _, rest = valkey.partition("://")
        if scheme not in _VALKEY_SCHEMES or not rest:
            raise InputError("VALKEY_URL", _without_password(valkey), "must start with valkey:// or redis://")
        valkey = f"{_VALKEY_SCHEMES[scheme]}://{rest}"
    return database, valkey


def endpoints(var: Path | None = None) -> Endpoints:
    """Return DATABASE_URL and VALKEY_URL, or the embedded servers' for what they leave open.

    Parameters
    ----------
    var : the folder of the installation (default: MERIDIAN_VAR, or var/ in the checkout).

    Raises
    ------
    NotRunning
        A URL is missing and the embedded servers do not run; the message says what to start.
    InputError
        A URL has a wrong scheme.
    """
    var = var or var_folder()
    database, valkey = given()
    if not database:
        database = _embedded(var, "postgres", "DATABASE_URL")
    if not valkey:
        valkey = _embedded(var, "valkey", "VALKEY_URL")
    return Endpoints(database_url=database, valkey_url=valkey)


def _embedded(var: Path, name: str, variable: str) -> str:
    state = read_state(var)
    pid, url = state.get("pid"), state.get(name, {}).get("url")
    if not (isinstance(pid, int) and isinstance(url, str) and process.alive(pid)):
        raise NotRunning(
            f"{variable} is not set and no embedded server runs in {var}: start `make demo`, or "
            f"`python -m webapp.servers` for the servers alone, or set {variable}"
        )
    return url


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else url
