"""Which versions of agent and site go together: those with the same major and minor number."""

import json
import logging
from collections.abc import Callable

import redis

from engine import __version__
from engine.errors import InputError
from workers.config import AgentConfig

log = logging.getLogger(__name__)


def series(version: str) -> str:
    """``0.1`` of ``0.1.7``."""
    return ".".join(version.split(".")[:2])


def refuse_skew(config: AgentConfig, connect: Callable[[str], "redis.Redis"]) -> None:
    """Refuse to start beside a site of another series; a broker that does not answer now says nothing.

    Raises
    ------
    InputError
        Says which side to update, and how.
    """
    site = _site_version(config, connect)
    if site and series(site) != series(__version__):
        raise InputError("version", __version__, f"the site is {site}: {remedy(site)}")


def remedy(site: str, ours: str = __version__) -> str:
    """What to do where the site runs version `site` and the agent `ours`."""
    install = f"pip install 'meridian[node]=={series(site)}.*'"
    if _numbers(ours) > _numbers(site):
        return f"update the site to {series(ours)}, or run here: {install}"
    return f"run here: {install}"


def _site_version(config: AgentConfig, connect: Callable[[str], "redis.Redis"]) -> str:
    try:
        with connect(config.broker_url) as client:
            found = client.get(config.site_key)
        return str(json.loads(found)["version"]) if found else ""
    except (redis.RedisError, OSError) as error:
        log.warning("the site's version is not known: %s", error)
    except (ValueError, KeyError, TypeError):
        log.warning("what the site says of its version cannot be read")
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))
