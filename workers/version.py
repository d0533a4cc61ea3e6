"""Refuses to start an agent with a site of another version."""

import logging
from collections.abc import Callable

import redis

from engine import __version__
from engine.documents import read_json
from engine.errors import InputError
from engine.versions import remedy, series
from workers.config import AgentConfig

log = logging.getLogger(__name__)


def refuse_skew(config: AgentConfig, connect: Callable[[str], "redis.Redis"]) -> None:
    """Refuse to start with a site of another series; a broker that does not answer now says nothing.

    Raises
    ------
    InputError
        Says which side to update, and how.
    """
    site = ""
    try:
        with connect(config.broker_url) as client:
            site = site_version(client, config)
    except (redis.RedisError, OSError) as error:
        log.warning("the site's version is not known: %s", error)
    if site and series(site) != series(__version__):
        raise InputError(
            "version", __version__, f"the site is {site}: {remedy(site=site, agent=__version__)}"
        )


def site_version(client: "redis.Redis", config: AgentConfig) -> str:
    """What the site says of its version; empty where it has not, or it cannot be read.

    Raises
    ------
    redis.exceptions.RedisError
        The broker does not answer.
    """
    text = client.get(config.site_key)
    try:
        return str(read_json(text)["version"]) if text else ""
    except (ValueError, KeyError, TypeError):
        log.warning("what the site says of its version cannot be read")
        return ""
