"""Joining a site: a token from its page against the node's own credentials, kept in var/nodes/<name>.env."""

import json
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engine.documents import read_json_file
from engine.errors import InputError
from workers.config import NAME

JOIN_PATH = "/api/v1/nodes/join/"
PATIENCE_S = 15.0
MOST_ANSWER = 1 << 20  # bytes of an answer of the site, or of who answers in its place
_VARIABLE = re.compile(r"MERIDIAN_[A-Z_]{1,40}")
# What the site says of a node. All else is the machine's own affair: which folders runs may name, for one.
_OF_THE_SITE = (
    "MERIDIAN_NODE",
    "MERIDIAN_BROKER_URL",
    "MERIDIAN_NODE_GPUS",
    "MERIDIAN_NODE_DEVICE",
    "MERIDIAN_NODE_HOST",
    "MERIDIAN_NODE_PORTS",
)


def site_address(url: str) -> tuple[str, int]:
    """Host and port of the site. Raises InputError where `url` is no http(s) URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        host = None
    if not host:
        raise InputError("URL", url, "must be the site's address, as in https://meridian.example")
    return host, port


def own_address(towards: tuple[str, int]) -> str:
    """The address of this machine on the way to `towards`; nothing is sent.

    Raises
    ------
    InputError
        There is no way to that host.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(*towards, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError("URL", towards[0], f"cannot be reached from this machine ({reason})") from None


def check_host(host: str) -> None:
    """Refuse an address that this machine cannot listen on: ranks listen on the address that they are told.

    Raises
    ------
    InputError
        It is not an address of this machine.
    """
    if reason := listen_error(host):
        raise InputError("--host", host, f"must be an address of this machine ({reason})")


def listen_error(host: str, port: int = 0) -> str:
    """Why this machine cannot listen on `host` and `port` (0: any); empty where it can."""
    try:
        socket.create_server((host, port)).close()
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def ask(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """POST `body` to the site and return its answer.

    Raises
    ------
    InputError
        The site refuses (its reason, and what to do), or is not there.
    """
    request = urllib.request.Request(
        url.rstrip("/") + JOIN_PATH,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Accept": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            document = read_json_file(answer, most_bytes=MOST_ANSWER)
    except urllib.error.HTTPError as error:
        raise _refusal(url, error) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError("URL", url, f"no Meridian site answers there ({reason})") from None
    if not isinstance(document, dict) or not isinstance(document.get("environment"), dict):
        raise InputError("URL", url, "the server there is not a Meridian site")
    return document


def write_environment(var: Path, environment: Mapping[str, Any]) -> Path:
    """Write var/nodes/<name>.env, readable by its owner alone, in place of an older one.

    Lines that the machine's owner added there stay (docs/settings.md).

    Raises
    ------
    InputError
        The site's answer holds what is not for the site to say, or the folder cannot be written.
    """
    name = environment.get("MERIDIAN_NODE")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError("MERIDIAN_NODE", name, "the site's answer names no node")
    for key, value in environment.items():
        if key not in _OF_THE_SITE or not isinstance(value, str) or not value.isprintable():
            allowed = f"the site's answer must hold lines of {', '.join(_OF_THE_SITE)} and nothing else"
            raise InputError(key, value, allowed)
    path = env_file(var, name)
    try:
        own = {key: value for key, value in read_environment(path).items() if key not in _OF_THE_SITE}
    except InputError:
        own = {}  # no such file, or one that no agent would start with
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.writelines(f"{key}={value}\n" for key, value in {**environment, **own}.items())
        draft.replace(path)
    except OSError as error:
        raise InputError("MERIDIAN_VAR", str(var), f"cannot be written ({error.strerror})") from None
    return path


def env_file(var: Path, name: str) -> Path:
    """Where the credentials of node `name` are kept."""
    return var / "nodes" / f"{name}.env"


def read_environment(path: Path) -> dict[str, str]:
    """Read NAME=value lines. Raises InputError where there is no such file or a line is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        names = ", ".join(sorted(file.stem for file in path.parent.glob("*.env"))) or "none yet"
        raise InputError(
            "NAME", path.stem, f"no {path} ({error.strerror}); nodes here: {names}; join first"
        ) from None
    values = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not _VARIABLE.fullmatch(name.strip()):
            raise InputError("NAME", path.stem, f"{path}, line {number}: must be MERIDIAN_…=value")
        values[name.strip()] = value.strip()
    return values


def _refusal(url: str, error: urllib.error.HTTPError) -> InputError:
    try:
        body = read_json_file(error, most_bytes=MOST_ANSWER)
        reason, todo = str(body["reason"]), str(body.get("remedy") or "")
        field = str(body.get("field") or "the site refuses")
        value = body.get("value")
    except (OSError, ValueError, KeyError, TypeError):
        return InputError("URL", url, f"no Meridian site answers there (status {error.code})")
    return InputError(field, value, f"{reason}{': ' if todo else ''}{todo}")
