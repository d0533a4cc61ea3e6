"""The broker users of nodes: each may use the commands that its agent needs, on its own keys alone.

A node takes tasks from its queue (workers/transport.py), appends to its stream of events and reads what the
site says of itself. It can write nothing else, block nobody else's keys, ask for no answer that it could make
large, and run no script: a script that has written cannot even be killed. tests/servers/test_acl.py and
tests/workers/test_agent_run.py run a real agent under these rights and fail on any refusal.
"""

import re
from collections import Counter
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from engine.errors import InputError

if TYPE_CHECKING:
    from redis import Redis

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_SHA256 = re.compile(r"[0-9a-f]{64}")

# Of the connection alone: no keys, and no answer longer than the question.
COMMANDS = (
    "ping",
    "hello",
    "auth",
    "quit",
    "client|setinfo",
    "client|setname",
    "client|id",
    "time",  # how far the node's clock is off
)


def user_of(name: str) -> str:
    """The broker user of node `name`. Raises InputError for a name that is none."""
    if not _NAME.fullmatch(name):
        raise InputError("node", name, "lower-case letters, digits and inner hyphens, at most 40")
    return f"node-{name}"


def set_node_user(
    client: "Redis", name: str, password_sha256: str, *, may_report: bool = True, keep: bool = True
) -> None:
    """Create or replace the broker user of a node.

    Parameters
    ----------
    client : with the rights of an administrator.
    name : of the node.
    password_sha256 : hexadecimal SHA-256 of the node's password; the password itself is not needed.
    may_report : whether it may append to its stream of events.
    keep : over restarts, where the server has a user file; who writes many calls `save` once.

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
    rules += [f"+{command}" for command in COMMANDS]
    rules += [
        f"(+brpop +llen ~node:{name}:node.{name})",
        f"({'+xadd ' if may_report else ''}+xlen ~node:{name}:events)",
        f"(+get ~node:{name}:site)",
    ]
    client.execute_command("ACL", "SETUSER", user_of(name), *rules)
    if keep:
        save(client)


def drop_node_user(client: "Redis", name: str) -> bool:
    """Remove a node's broker user and cut its connections; return whether there was one."""
    removed = client.execute_command("ACL", "DELUSER", user_of(name))
    save(client)
    return bool(removed)


def cut_connections(client: "Redis", name: str) -> int:
    """End the connections of a node's broker user; those with the old password must not live on."""
    return int(client.execute_command("CLIENT", "KILL", "USER", user_of(name)))


def connections(client: "Redis") -> dict[str, int]:
    """How many connections each user of the broker has."""
    clients = client.client_list()
    return dict(Counter(str(one.get("user", "")) for one in clients))


def users(client: "Redis") -> dict[str, str]:
    """The broker's own words for each of its users, by user: other words, other rights."""
    lines = [str(line) for line in client.execute_command("ACL", "LIST")]
    return {line.split(" ")[1]: line for line in lines}


def save(client: "Redis") -> None:
    """Write the users to the server's file; one without such a file is filled again from the database."""
    try:
        client.execute_command("ACL", "SAVE")
    except ResponseError as error:
        if "not configured to use an ACL file" not in str(error):
            raise
