"""Whether the servers that DATABASE_URL and VALKEY_URL name answer: asked once, before anything starts."""

from urllib.parse import SplitResult, urlsplit

import psycopg
import redis

from webapp.servers.errors import ServersError

ANSWER_WITHIN_S = 5


def check_given(database_url: str | None, valkey_url: str | None) -> None:
    """Log in to the given servers.

    Raises
    ------
    ServersError
        One does not answer, refuses, or its URL is malformed; names the variable and never the password.
    """
    if database_url:
        parts = _parts("DATABASE_URL", database_url)
        if not parts.path.strip("/"):
            raise ServersError(
                f"DATABASE_URL: {_place(parts)}: names no database, as in postgresql://host/meridian"
            )
        try:
            psycopg.connect(database_url, connect_timeout=ANSWER_WITHIN_S).close()
        except psycopg.Error as error:
            raise ServersError(f"DATABASE_URL: {_place(parts)}: {_in_one_line(error)}") from None
    if valkey_url:
        parts = _parts("VALKEY_URL", valkey_url)
        try:
            with redis.Redis.from_url(
                valkey_url, socket_connect_timeout=ANSWER_WITHIN_S, socket_timeout=ANSWER_WITHIN_S
            ) as client:
                client.ping()
        except (redis.RedisError, ValueError) as error:
            raise ServersError(f"VALKEY_URL: {_place(parts)}: {_in_one_line(error)}") from None


def _parts(variable: str, url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ServersError(f"{variable}: {error}") from None
    return parts


def _place(parts: SplitResult) -> str:
    """Host, port and path: what a person needs to recognise the URL, without its password."""
    return repr(f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}")


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
