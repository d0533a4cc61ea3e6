"""Broker users of nodes, and what the site leaves for them there.

The broker may lose both: FLUSHALL, a restart without its files, an operator's hand. Ingest looks every 2 s
(`NodeUsers`) and gives back what is missing, so that no node stays locked out.
"""

import json
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import structlog
from django.conf import settings
from redis.exceptions import OutOfMemoryError

from engine import __version__
from webapp.inventory.models import Node
from webapp.servers import acl

log = structlog.get_logger(__name__)


def set_broker_user(node: Node) -> None:
    """Give the broker `node`'s user, with the password of which the node keeps the hash.

    Connections that were opened with an older password end.
    """
    client = _client()
    acl.set_node_user(client, node.name, node.acl_sha256, may_report=node.refused_since is None)
    _tell_version(client, [node.name])
    acl.cut_connections(client, node.name)


def drop_broker_user(node: Node) -> None:
    """Take `node`'s user from the broker, end its connections, and drop what was queued for it."""
    client = _client()
    acl.drop_node_user(client, node.name)
    client.delete(_site_key(node.name), f"node:{node.name}:node.{node.name}")


def sync_acl(client: Any) -> int:
    """Give the broker every enrolled node's user again (it may have lost them); returns how many."""
    users = NodeUsers()
    users.reconcile(client)
    return len(users)


# What was wanted of a node's user (digest of its password, whether it may report); the broker's words for it.
_Written = tuple[tuple[str, bool], str | None]


def _written(name: str, wanted: dict[str, tuple[str, bool]], current: dict[str, str]) -> _Written:
    return wanted[name], current.get(acl.user_of(name))


class NodeUsers:
    """Keeps the broker's users of nodes as the database says, for one process that looks again and again."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}

    def __len__(self) -> int:
        return len(self._written)

    def reconcile(self, client: Any) -> list[str]:
        """Write the users that are missing or differ; returns the names of nodes that the broker had lost.

        The first time all are written: the rights may be those of an older version.

        Raises
        ------
        redis.exceptions.RedisError
            The broker does not answer, or refuses.
        """
        rows = Node.objects.exclude(acl_sha256="").values_list("name", "acl_sha256", "refused_since")
        wanted = {name: (digest, refused is None) for name, digest, refused in rows}
        if not wanted:  # a broker without nodes need not let us see its users
            self._written = {}
            return []
        users = acl.users(client)
        due = [name for name in wanted if self._written.get(name) != _written(name, wanted, users)]
        for name in due:
            digest, may_report = wanted[name]
            acl.set_node_user(client, name, digest, may_report=may_report, keep=False)
        if due:
            acl.save(client)
        now = acl.users(client) if due else users
        self._written = {name: _written(name, wanted, now) for name in wanted}
        _tell_version(client, list(wanted))
        return [name for name in due if acl.user_of(name) not in users]


def node_broker_url(name: str, password: str) -> str:
    """The broker's URL as node `name` is to use it (MERIDIAN_NODE_VALKEY_URL)."""
    parts = urlsplit(settings.NODE_VALKEY_URL)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"node-{name}:{quote(password, safe='')}@{address}"))


def _tell_version(client: Any, names: list[str]) -> None:
    """Leave our version where agents read it when they start; they do not run with another
    (workers/version.py)."""
    text = json.dumps({"version": __version__})
    keys = [_site_key(name) for name in names]
    missing = [
        key for key, value in zip(keys, client.mget(keys), strict=True) if value not in (text, text.encode())
    ]
    if missing:
        try:
            client.mset(dict.fromkeys(missing, text))
        except OutOfMemoryError:  # an agent that starts now asks again later
            log.warning("the broker is full: nodes are not told the site's version", nodes=len(missing))


def _site_key(name: str) -> str:
    return f"node:{name}:site"


def _client() -> Any:
    from webapp.common.broker import client

    return client()
