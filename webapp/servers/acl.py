"""The broker users of nodes: each may use the commands that its agent needs, on its own keys alone.

The list of commands is what kombu's Redis transport and the agent's publisher send; tests/servers/test_acl.py
runs a real agent under it and fails on any refusal. Celery needs no pub/sub without remote control and
gossip, so a node gets no channel at all.
"""

import re
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from engine.errors import InputError

if TYPE_CHECKING:
    from redis import Redis

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_SHA256 = re.compile(r"[0-9a-f]{64}")

# What kombu keeps under the node's prefix. Not among them: its stream of events, to which it appends, and
# what the site says of itself, which it reads.
KEYS = ("node.*", "_kombu.*", "unacked*")
COMMANDS = (
    # consuming the queue and acknowledging
    "brpop",
    "rpop",
    "lpush",
    "rpush",
    "llen",
    "hset",
    "hget",
    "hdel",
    "hlen",
    "zadd",
    "zrem",
    "zrange",
    "zrangebyscore",
    "zrevrangebyscore",
    "sadd",
    "srem",
    "smembers",
    "del",
    # giving back what was taken and not acknowledged: one agent at a time, in a transaction
    "set",
    "get",
    "watch",
    "unwatch",
    "multi",
    "exec",
    "discard",
    "evalsha",
    "script|load",
    # the connection
    "ping",
    "hello",
    "auth",
    "quit",
    "client|setinfo",
    "client|setname",
    "client|id",
    # how far its clock is off
    "time",
)


def user_of(name: str) -> str:
    """The broker user of node `name`. Raises InputError for a name that is none."""
    if not _NAME.fullmatch(name):
        raise InputError("node", name, "lower-case letters, digits and inner hyphens, at most 40")
    return f"node-{name}"


def set_node_user(client: "Redis", name: str, password_sha256: str) -> None:
    """Create or replace the broker user of a node; keep it over restarts where the server has a user file.

    Parameters
    ----------
    client : with the rights of an administrator.
    name : of the node.
    password_sha256 : hexadecimal SHA-256 of the node's password; the password itself is not needed.

    Raises
    ------
    InputError
        The name or the digest is malformed.
    redis.exceptions.RedisError
        The server cannot be reached or refuses.
    """
    if not _SHA256.fullmatch(password_sha256):
        raise InputError("password_sha256", "…", "must be 64 hexadecimal digits")
    rules = ["reset", "on", "sanitize-payload", f"#{password_sha256}", "resetchannels", "-@all"]
    rules += [f"~node:{name}:{keys}" for keys in KEYS]
    rules += [f"+{command}" for command in COMMANDS]
    rules += [f"(+xadd +xlen ~node:{name}:events)", f"(+get ~node:{name}:site)"]
    client.execute_command("ACL", "SETUSER", user_of(name), *rules)
    _save(client)


def drop_node_user(client: "Redis", name: str) -> bool:
    """Remove a node's broker user and cut its connections; return whether there was one."""
    removed = client.execute_command("ACL", "DELUSER", user_of(name))
    _save(client)
    return bool(removed)


def cut_connections(client: "Redis", name: str) -> int:
    """End the connections of a node's broker user; those with the old password must not live on."""
    return int(client.execute_command("CLIENT", "KILL", "USER", user_of(name)))


def _save(client: "Redis") -> None:
    """Write the users to the server's file; one without such a file is filled again from the database."""
    try:
        client.execute_command("ACL", "SAVE")
    except ResponseError as error:
        if "not configured to use an ACL file" not in str(error):
            raise
