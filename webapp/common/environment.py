"""What the site reads from its environment, each value checked where it is read.

A wrong value stops the start with one sentence that names the variable, the value and what is allowed.
"""

import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
ROOT = Path(__file__).resolve().parents[2]


def choice(name: str, default: str, allowed: Sequence[str]) -> str:
    """The variable `name`, which must be one of `allowed`."""
    value = os.environ.get(name, default)
    if value not in allowed:
        raise ImproperlyConfigured(f"{name}={value!r}: allowed are {', '.join(allowed)}")
    return value


def flag(name: str, default: bool) -> bool:
    """The variable `name` as a bool: 1, true, yes, on or 0, false, no, off."""
    value = os.environ.get(name, "").strip().lower()
    if not value:
        return default
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise ImproperlyConfigured(f"{name}={value!r}: allowed are 1 and 0")


def number(name: str, default: float, *, least: float) -> float:
    """The variable `name` as a finite number, at least `least`."""
    text = os.environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={text!r}: must be a number") from None
    if not least <= value < float("inf"):
        raise ImproperlyConfigured(f"{name}={text!r}: must be a number, at least {least:g}")
    return value


def words(name: str, default: Sequence[str] = ()) -> list[str]:
    """The variable `name` as a list, split at commas."""
    text = os.environ.get(name, "")
    return [word.strip() for word in text.split(",") if word.strip()] or list(default)


def contacts(name: str) -> list[str]:
    """The variable `name` as addresses of people, URIs split at commas."""
    addresses = words(name)
    for word in addresses:
        if not word.startswith(("mailto:", "https://", "tel:")) or not word.isprintable():
            text = f"{name}={word!r}: must begin with mailto:, https:// or tel:"
            raise ImproperlyConfigured(text)
    return addresses


def networks(name: str) -> list[Network]:
    """The variable `name` as IP addresses and networks, split at commas; an address is a network of one."""
    parsed: list[Network] = []
    for word in words(name):
        try:
            parsed.append(ipaddress.ip_network(word))
        except ValueError:
            text = f"{name}={word!r}: must be IP addresses or networks, as in 10.0.0.5 or 172.16.0.0/12"
            raise ImproperlyConfigured(text) from None
    return parsed


def required(name: str, why: str) -> str:
    """The variable `name`; without it the site does not start."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise ImproperlyConfigured(f"{name} is not set: {why}")
    return value


def kept_secret(path: Path) -> str:
    """The secret in the file `path` (mode 0600), made there on first use.

    Several processes may start at once: the first whole file wins, the others read it.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(50))
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text().strip()


def database(url: str, *, pool_size: int) -> dict[str, Any]:
    """Django's DATABASES entry for a postgresql:// URL, with a connection pool of at most `pool_size`.

    Raises
    ------
    ImproperlyConfigured
        The URL is not one of PostgreSQL, or names no database.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured(f"DATABASE_URL: {parts.scheme or url!r}: must start with postgresql://")
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ImproperlyConfigured(
            "DATABASE_URL: names no database; as in postgresql://user:password@host:5432/meridian"
        )
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    options["pool"] = {
        "min_size": 0,
        "max_size": pool_size,
        "timeout": 10,  # for one that others have; a server that is away is known sooner (common/postgresql)
        "max_idle": 60,
        "reconnect_timeout": 5,  # the pool tries at ever longer intervals: after this it begins anew
    }
    return {
        "ENGINE": "webapp.common.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 0,  # under ASGI connections outlive no request; the pool keeps them instead
        "OPTIONS": options,
    }
