"""`meridian doctor`: what this machine lacks to be a good node, and what to do about it.

Each check is a function that returns lines; one that breaks is a line that says so. Nothing is changed, apart
from a file that is written to the disk and taken away again.
"""

import importlib.metadata
import os
import platform
import resource
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import redis
from redis.exceptions import NoPermissionError

from engine import __version__
from engine.documents import read_json_file
from engine.errors import InputError
from engine.versions import remedy, series
from workers import clock, hardware
from workers.agent import connect
from workers.config import AgentConfig, from_environment
from workers.join import MOST_ANSWER, env_file, listen_error, read_environment, site_address
from workers.version import site_version

LEAST_PYTHON = (3, 11)
# (warn below, fail below)
DISK_GB = (10.0, 1.0)
WRITE_MB_S = (100.0, 10.0)
OPEN_FILES = (4096, 256)
SHARED_MEMORY_MB = (256.0, 16.0)
CLOCK_WARN_MS = 5.0
WRITTEN_BYTES = 32 << 20
NEEDED = ("celery", "redis", "nvidia-ml-py", "psutil", "torch", "xxhash", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One finding; `level` is ok, warn or fail, `todo` says what to do where it is not ok."""

    check: str
    level: str
    found: str
    todo: str = ""


def examine(var: Path, name: str | None, site: str | None) -> list[Line]:
    """Check this machine, the node `name` (or the only one that joined from here), and the site at `site`.

    Raises
    ------
    InputError
        No node of that name has joined from here.
    """
    config = _config(var, name)
    checks: list[Callable[[], Iterable[Line]]] = [_python, _packages, _limits, _shared_memory]
    checks.append(lambda: _disk(var))
    if config is None:
        checks.append(
            lambda: [
                _line(
                    "node", "ok", f"no node has joined from this machine ({var / 'nodes'} has no credentials)"
                )
            ]
        )
    else:
        checks += [lambda: _address(config), lambda: _broker(config), lambda: _devices(config)]
    if site:
        checks.append(lambda: _site(site))
    return [line for check in checks for line in _guarded(check)]


def text_of(lines: list[Line]) -> str:
    """The findings for people: one line each, and below it what to do."""
    width = max(len(line.check) for line in lines)
    text_lines = []
    for line in lines:
        text_lines.append(f"{line.level:<4}  {line.check:<{width}}  {line.found}")
        if line.todo:
            text_lines.append(f"{'':<{width + 8}}→ {line.todo}")
    failed = sum(line.level == "fail" for line in lines)
    warned = sum(line.level == "warn" for line in lines)
    text_lines.append(f"{len(lines)} checks: {failed} failed, {warned} with a warning")
    return "\n".join(text_lines)


def _line(check: str, level: str, finding: str, todo: str = "") -> Line:
    return Line(check=check, level=level, found=finding, todo="" if level == "ok" else todo)


def _graded(check: str, value: float, limits: tuple[float, float], finding: str, todo: str) -> Line:
    warn, fail = limits
    return _line(check, "fail" if value < fail else "warn" if value < warn else "ok", finding, todo)


def _guarded(check: Callable[[], Iterable[Line]]) -> list[Line]:
    try:
        return list(check())
    except Exception as error:  # a check that breaks must not keep the others from being made
        name = getattr(check, "__name__", "check").strip("_<>")
        return [_line(name, "fail", f"could not be checked: {error}", "see the message")]


def _config(var: Path, name: str | None) -> AgentConfig | None:
    files = sorted((var / "nodes").glob("*.env"))
    if name is None and len(files) != 1:
        if len(files) > 1:
            raise InputError("NAME", None, f"name the node: {', '.join(path.stem for path in files)}")
        return None
    path = env_file(var, name) if name else files[0]
    return from_environment({"MERIDIAN_VAR": str(var)} | read_environment(path))


def _python() -> list[Line]:
    version = platform.python_version()
    level = "ok" if tuple(map(int, platform.python_version_tuple()[:2])) >= LEAST_PYTHON else "fail"
    return [
        _line("python", level, version, f"Meridian needs Python {'.'.join(map(str, LEAST_PYTHON))} or newer")
    ]


def _packages() -> Iterable[Line]:
    missing = []
    versions = [f"meridian {__version__}"]
    for package in NEEDED:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        todo = f"pip install 'meridian[node]=={series(__version__)}.*'"
        yield _line("packages", "fail", f"missing: {', '.join(missing)}", todo)
    else:
        yield _line("packages", "ok", ", ".join(versions))


def _limits() -> list[Line]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    todo = f"raise it: ulimit -n {OPEN_FILES[0]} (the hard limit is {hard}), or LimitNOFILE= in the unit file"
    return [_graded("open files", soft, OPEN_FILES, f"{soft:,} per process", todo)]


def _shared_memory() -> list[Line]:
    try:
        free_mb = shutil.disk_usage("/dev/shm").free / 1e6
    except OSError:
        return [
            _line(
                "shared memory", "warn", "no /dev/shm", "mount a tmpfs there; in a container: --shm-size=1g"
            )
        ]
    todo = "in a container: --shm-size=1g; else remount /dev/shm with more"
    return [_graded("shared memory", free_mb, SHARED_MEMORY_MB, f"{free_mb:,.0f} MB free", todo)]


def _disk(var: Path) -> Iterable[Line]:
    folder = next(path for path in (var, *var.parents) if path.exists())
    free_gb = shutil.disk_usage(folder).free / 1e9
    todo = "free space, or set MERIDIAN_VAR to a folder on a larger disk"
    yield _graded("disk space", free_gb, DISK_GB, f"{free_gb:,.1f} GB free in {folder}", todo)
    try:
        speed = _write_mb_s(folder)
    except OSError as error:
        yield _line(
            "disk writing",
            "fail",
            f"{folder}: {error.strerror}",
            f"allow this account to write there: {todo}",
        )
        return
    todo = "events wait on this disk while the broker is away: move MERIDIAN_VAR to a faster one"
    yield _graded("disk writing", speed, WRITE_MB_S, f"{speed:,.0f} MB/s with fsync", todo)


def _write_mb_s(folder: Path) -> float:
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(WRITTEN_BYTES >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return WRITTEN_BYTES / 1e6 / (time.perf_counter() - began)


def _address(config: AgentConfig) -> Iterable[Line]:
    if reason := listen_error(config.host):
        todo = "join again with --host set to an address of this machine that other nodes reach"
        yield _line("address", "fail", f"{config.host} cannot listen ({reason})", todo)
        return
    yield _line("address", "ok", f"{config.host}: the advertised address, and it can listen")
    if config.ports is None:
        yield _line(
            "ports", "warn", "no port range is set", "join again: the site gives this node a range of ports"
        )
        return
    first, last = config.ports
    busy = [port for port in range(first, last + 1) if listen_error(config.host, port)]
    free = f"{last - first + 1 - len(busy)} of {last - first + 1} free from {first} to {last}"
    need = 2 * config.gpus + 1
    level = "ok" if not busy else "fail" if last - first + 1 - len(busy) < need else "warn"
    todo = f"ports in use: {_few(busy)} (ss -ltnp shows the processes); this node needs {need}"
    yield _line("ports", level, free, todo)


def _few(ports: list[int]) -> str:
    return ", ".join(map(str, ports[:5])) + (f" and {len(ports) - 5} more" if len(ports) > 5 else "")


def _broker(config: AgentConfig) -> Iterable[Line]:
    where = config.broker_url.rpartition("@")[2]
    with connect(config.broker_url) as client:
        try:
            client.ping()
        except redis.AuthenticationError:
            todo = "the credentials were revoked or replaced: join again with a new token"
            yield _line("broker", "fail", f"{where} refuses this node", todo)
            return
        except (redis.RedisError, OSError) as error:
            todo = "start the site, open its broker to this machine (MERIDIAN_NODE_VALKEY_URL, firewall)"
            yield _line("broker", "fail", f"{where} does not answer ({error})", todo)
            return
        yield _line("broker", "ok", f"{where} answers")
        rights = _rights(client, config)
        yield rights
        if rights.level == "fail":
            return  # what follows reads the node's own keys
        yield _version(client, config)
        yield _clock(client)


def _rights(client: "redis.Redis", config: AgentConfig) -> Line:
    """Exactly its own keys: a node that can do less is broken, one that can do more is a danger."""
    todo = "on the site: manage.py sync_node_acl"
    try:
        client.xlen(config.stream)
        client.llen(f"{config.prefix}{config.queue}")
    except NoPermissionError as error:
        return _line("broker rights", "fail", f"this node lacks rights on its own keys ({error})", todo)
    for forbidden in (
        ("CONFIG", "GET", "maxmemory"),
        ("LLEN", "control:control"),
        ("KEYS", "node:*"),
        ("EVAL", "return 1", "0"),  # a script can block the broker for all
    ):
        try:
            client.execute_command(*forbidden)
        except redis.ResponseError:
            continue
        return _line(
            "broker rights",
            "fail",
            f"this node may {' '.join(forbidden)}, which goes beyond its own keys",
            todo,
        )
    return _line("broker rights", "ok", "only its own keys")


def _version(client: "redis.Redis", config: AgentConfig) -> Line:
    site = site_version(client, config)
    if not site:
        return _line(
            "version",
            "warn",
            f"{__version__}; the site has not reported its version yet",
            "wait for the site to report it, or check that the site is running",
        )
    same = series(site) == series(__version__)
    found_text = f"{__version__} here, {site} on the site"
    return _line("version", "ok" if same else "fail", found_text, remedy(site=site, agent=__version__))


def _clock(client: "redis.Redis") -> Line:
    try:
        reading = clock.measure(client)
    except NoPermissionError:
        return _line(
            "clock", "warn", "the broker does not report the time", "on the site: manage.py sync_node_acl"
        )
    offset_ms, rtt_ms = reading.offset_s * 1e3, reading.rtt_s * 1e3
    offset = f"{offset_ms:+.2f} ms relative to the broker, accurate to {rtt_ms / 2:.2f} ms"
    level = "warn" if abs(offset_ms) > max(CLOCK_WARN_MS, rtt_ms / 2) else "ok"
    return _line(
        "clock", level, offset, "synchronise it with NTP (chrony); times of spans are corrected meanwhile"
    )


def _devices(config: AgentConfig) -> Iterable[Line]:
    devices = hardware.look_apart(config.device)
    if config.device != "cuda":
        memory = f"{devices['memory_bytes'] / 2**30:.1f} GiB"
        yield _line("devices", "ok", f"{config.gpus} × {config.device} on {devices['cores']} cores, {memory}")
        return
    names = [f"{gpu['name']} {gpu['memory_bytes'] / 2**30:.0f} GiB" for gpu in devices["gpus"]]
    if len(names) < config.gpus:
        todo = "check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, or join again with fewer --gpus"
        why = devices["error"] or f"torch sees {len(names)} of {config.gpus} CUDA devices"
        yield _line("devices", "fail", why, todo)
    else:
        yield _line("devices", "ok", f"{len(names)} CUDA devices: {', '.join(sorted(set(names)))}")


def _site(url: str) -> Iterable[Line]:
    site_address(url)
    address = url.rstrip("/") + "/readyz"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            read_json_file(answer, most_bytes=MOST_ANSWER)
        yield _line("site", "ok", f"{address}: ready")
    except urllib.error.HTTPError as error:
        todo = _not_ready(error) or "see the site's log"
        yield _line("site", "fail", f"{address}: status {error.code}", todo)
    except (OSError, ValueError, HTTPException) as error:
        yield _line(
            "site", "fail", f"{address} does not answer ({error})", "start it: python -m webapp.supervisor"
        )


def _not_ready(answer: urllib.error.HTTPError) -> str:
    """The parts of the site that are not well, as its /readyz names them; empty where it names none."""
    try:
        body = read_json_file(answer, most_bytes=MOST_ANSWER)
    except (OSError, ValueError, HTTPException):
        return ""
    checks = body.get("checks") if isinstance(body, dict) else None
    return "; ".join(
        f"{name}: {check.get('detail') or 'not ok'}"
        for name, check in (checks.items() if isinstance(checks, dict) else ())
        if isinstance(check, dict) and not check.get("ok")
    )
