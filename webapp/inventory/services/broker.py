"""Broker users of nodes."""

from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from django.conf import settings

from webapp.inventory.models import Node
from webapp.servers import acl


def set_broker_user(node: Node) -> None:
    """Give the broker `node`'s user, with the password of which the node keeps the hash."""
    acl.set_node_user(_client(), node.name, node.acl_sha256)


def drop_broker_user(node: Node) -> None:
    """Take `node`'s user from the broker and end its connections."""
    acl.drop_node_user(_client(), node.name)


def sync_acl(client: Any) -> int:
    """Give the broker every enrolled node's user again (it may have lost them); returns how many."""
    nodes = Node.objects.exclude(acl_sha256="").values_list("name", "acl_sha256")
    for name, password_sha256 in nodes:
        acl.set_node_user(client, name, password_sha256)
    return len(nodes)


def node_broker_url(name: str, password: str) -> str:
    """The broker's URL as node `name` is to use it (MERIDIAN_NODE_VALKEY_URL)."""
    parts = urlsplit(settings.NODE_VALKEY_URL)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"node-{name}:{quote(password, safe='')}@{address}"))


def _client() -> Any:
    from webapp.broker import client

    return client()
