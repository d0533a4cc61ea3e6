"""Whether an error means that PostgreSQL is away, and not that a query was wrong."""

from django.db import InterfaceError, OperationalError

RETRY_AFTER_S = 5
# Classes and codes of PostgreSQL: connection exceptions; it stops, has crashed or starts; no slot is left.
_AWAY = ("08", "57P01", "57P02", "57P03", "53300")


def is_away(error: BaseException | None) -> bool:
    """Whether `error` says that the database cannot be reached, or has closed the connection.

    A query that took too long, or that gave way to another, is an OperationalError too, and is none of these:
    the server has answered, with a code of its own.
    """
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    state = getattr(error.__cause__, "sqlstate", None)
    return state is None or state.startswith(_AWAY)
