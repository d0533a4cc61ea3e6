"""Broker users of nodes, and what the site leaves for them there."""

import json
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from django.conf import settings

from engine import __version__
from webapp.inventory.models import Node
from webapp.servers import acl


def set_broker_user(node: Node) -> None:
    """Give the broker `node`'s user, with the password of which the node keeps the hash.

    Connections that were opened with an older password end.
    """
    client = _client()
    _set(client, node.name, node.acl_sha256)
    acl.cut_connections(client, node.name)


def drop_broker_user(node: Node) -> None:
    """Take `node`'s user from the broker, end its connections, and drop what was queued for it."""
    client = _client()
    acl.drop_node_user(client, node.name)
    client.delete(_site_key(node.name), f"node:{node.name}:node.{node.name}")


def sync_acl(client: Any) -> int:
    """Give the broker every enrolled node's user again (it may have lost them); returns how many."""
    nodes = Node.objects.exclude(acl_sha256="").values_list("name", "acl_sha256")
    for name, password_sha256 in nodes:
        _set(client, name, password_sha256)
    return len(nodes)


def node_broker_url(name: str, password: str) -> str:
    """The broker's URL as node `name` is to use it (MERIDIAN_NODE_VALKEY_URL)."""
    parts = urlsplit(settings.NODE_VALKEY_URL)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"node-{name}:{quote(password, safe='')}@{address}"))


def _set(client: Any, name: str, password_sha256: str) -> None:
    acl.set_node_user(client, name, password_sha256)
    # An agent reads our version when it starts, and refuses to run with another (workers/version.py).
    client.set(_site_key(name), json.dumps({"version": __version__}))


def _site_key(name: str) -> str:
    return f"node:{name}:site"


def _client() -> Any:
    from webapp.common.broker import client

    return client()
