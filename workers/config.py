"""What a node agent is told: read from the environment once, checked field by field."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from engine.control import addresses
from engine.errors import InputError
from engine.job.file_access import LOCAL, STORES, FileAccess
from engine.job.module_access import opened_modules

# Names become a broker user, a key prefix and a queue, so no character that means something there.
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
KEEP_RANKS_S = 120
DEVICES = ("cpu", "emulated", "cuda")
# What Meridian keeps under `var` for itself: credentials, keys, databases, logs. It is closed to runs.
OWN = (
    *("agents", "nodes", "servers", "servers.json", "servers.lock", "log", "secret_key", "demo", "demo-key"),
    *("staticfiles", "beat-schedule", "beat-schedule-shm", "beat-schedule-wal"),
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}")
# Kombu knows Redis's schemes only; the protocol is the same.
_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """One node: who it is, what it has, where its broker is.

    Attributes
    ----------
    broker_url : with the node's own user and password.
    host : the address under which other nodes reach this one.
    var : folder for logs and for the spool of events.
    files : the folders and object stores that documents of runs may name here.
    ports : first and last of the ports on which other nodes reach this one; None: not limited.
    spool_mb : most megabytes of spans and log lines kept on disk while the broker is away.
    keep_ranks_s : for how many seconds ranks go on without their agent, until it is there again.
    """

    node: str
    broker_url: str
    gpus: int
    device: str
    host: str
    var: Path
    files: FileAccess
    spool_mb: int = 256
    keep_ranks_s: float = KEEP_RANKS_S
    ports: tuple[int, int] | None = None

    @property
    def prefix(self) -> str:
        return f"node:{self.node}:"

    @property
    def queue(self) -> str:
        return f"node.{self.node}"

    @property
    def stream(self) -> str:
        return f"{self.prefix}events"

    @property
    def site_key(self) -> str:
        """Where the site leaves its version for this node."""
        return f"{self.prefix}site"

    @property
    def state_folder(self) -> Path:
        return self.var / "agents" / self.node


def from_environment(environ: Mapping[str, str]) -> AgentConfig:
    """Read the MERIDIAN_* variables of docs/settings.md.

    Raises
    ------
    InputError
        One is missing or wrong; names the variable and what is allowed.
    """
    device = _one_of(environ, "MERIDIAN_NODE_DEVICE", DEVICES)
    opened_modules(environ)  # the hosts of ranks read it; a wrong one is named here
    var = Path(environ.get("MERIDIAN_VAR") or "var").expanduser().absolute()
    return AgentConfig(
        node=_name(environ),
        broker_url=_broker_url(environ),
        gpus=_whole(environ, "MERIDIAN_NODE_GPUS", 1, 1024),
        device=device,
        host=_host(environ),
        var=var,
        files=_files(environ, var),
        spool_mb=_whole(environ, "MERIDIAN_SPOOL_MB", 1, 1_000_000, default=256),
        ports=_ports(environ),
        keep_ranks_s=float(_whole(environ, "MERIDIAN_KEEP_RANKS_S", 0, 86_400, default=KEEP_RANKS_S)),
    )


def _host(environ: Mapping[str, str]) -> str:
    name = "MERIDIAN_NODE_HOST"
    host = _required(environ, name, "the address under which other nodes reach this one")
    if not addresses.is_address(host):
        raise InputError(name, host, addresses.ALLOWED)
    return host


def port_range(text: str, field: str) -> tuple[int, int]:
    """Read ``29500-29599``. Raises InputError, naming `field`."""
    first, dash, last = text.strip().partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) <= 65535):
        raise InputError(field, text, "must be the first and the last port, 1024 to 65535, as in 29500-29599")
    return int(first), int(last)


def _ports(environ: Mapping[str, str]) -> tuple[int, int] | None:
    text = environ.get("MERIDIAN_NODE_PORTS", "").strip()
    return port_range(text, "MERIDIAN_NODE_PORTS") if text else None


def _files(environ: Mapping[str, str], var: Path) -> FileAccess:
    """What runs may name here: MERIDIAN_NODE_ROOTS (by default `var`), MERIDIAN_NODE_SCHEMES (STORES)."""
    name = "MERIDIAN_NODE_ROOTS"
    roots = [Path(text) for text in environ.get(name, "").split(os.pathsep) if text.strip()]
    for root in roots:
        if not root.is_absolute():
            raise InputError(name, str(root), f"must be absolute folders, with {os.pathsep!r} between them")
    schemes = STORES
    if text := environ.get("MERIDIAN_NODE_SCHEMES", "").strip():
        schemes = () if text == "none" else tuple(scheme.strip() for scheme in text.split(","))
        for scheme in schemes:
            if not _SCHEME.fullmatch(scheme) or scheme in LOCAL:
                allowed = "must be schemes of URLs with commas between them, as in s3,gs, or none; folders"
                raise InputError("MERIDIAN_NODE_SCHEMES", scheme, f"{allowed} go into {name}")
    folder = var.resolve()
    own = {path for name in OWN for path in (folder / name, (folder / name).resolve())}  # may be links
    return FileAccess(
        roots=tuple(str(root.resolve()) for root in roots or [var]),
        schemes=schemes,
        closed=tuple(sorted(map(str, own))),
    )


def _required(environ: Mapping[str, str], name: str, allowed: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise InputError(name, None, f"required, but missing: {allowed}")
    return value


def _name(environ: Mapping[str, str]) -> str:
    rule = "lower-case letters, digits and inner hyphens, at most 40"
    value = _required(environ, "MERIDIAN_NODE", f"the node's name, {rule}")
    if not NAME.fullmatch(value):
        raise InputError("MERIDIAN_NODE", value, rule)
    return value


def _broker_url(environ: Mapping[str, str]) -> str:
    value = _required(environ, "MERIDIAN_BROKER_URL", "redis://user:password@host:port/0")
    parts = urlsplit(value)
    address = f"{parts.scheme}://…@{parts.netloc.rpartition('@')[2]}"  # never the password
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise InputError("MERIDIAN_BROKER_URL", address, "must be redis://user:password@host:port/0")
    if not parts.username or not parts.password:
        raise InputError("MERIDIAN_BROKER_URL", address, "must hold the node's own user and password")
    return f"{_SCHEMES[parts.scheme]}://{value.partition('://')[2]}"


def _whole(
    environ: Mapping[str, str], name: str, least: int, most: int, *, default: int | None = None
) -> int:
    allowed = f"a whole number from {least} to {most}"
    if default is not None and not environ.get(name, "").strip():
        return default
    value = _required(environ, name, allowed)
    if not value.isdecimal() or not least <= int(value) <= most:
        raise InputError(name, value, f"must be {allowed}")
    return int(value)


def _one_of(environ: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = _required(environ, name, f"one of {', '.join(allowed)}")
    if value not in allowed:
        raise InputError(name, value, f"must be one of {', '.join(allowed)}")
    return value
