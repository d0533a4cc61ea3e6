"""How many rows of several kinds a user sees, asked at once."""

from collections.abc import Callable
from functools import cache
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet

# What a user sees of one kind. It may read of the user the key, `is_superuser` and `is_active`, but neither
# the clock nor the database: its statement is written once for all users.
Rows = Callable[[Any], QuerySet[Any]]

SOMEBODY = -(2**31)  # in place of the key of the user who asks; no row has it


def counts_of(rows: tuple[Rows, ...], user: Any) -> list[int]:
    """The `count()` of each, none of them a slice, for this user.

    Every page asks for those of its side bar. Django takes ten times as long to write the statement as
    PostgreSQL to answer it, and between two users of one kind only their keys differ in it.
    """
    if not rows:
        return []
    sql, params = _statement(rows, user.is_superuser, user.is_active)
    with connection.cursor() as cursor:
        cursor.execute(sql, [user.pk if value == SOMEBODY else value for value in params])
        return list(cursor.fetchone())


@cache
def _statement(rows: tuple[Rows, ...], is_superuser: bool, is_active: bool) -> tuple[str, list[Any]]:
    """The statement that counts all of `rows`, and its parameters, of which some are SOMEBODY.

    Raises
    ------
    TypeError
        A parameter is neither a text nor a number, such as the time at which the statement was written.
    """
    somebody = get_user_model()(pk=SOMEBODY, is_superuser=is_superuser, is_active=is_active)
    statements: list[str] = []
    params: list[Any] = []
    for rows_of in rows:
        try:
            sql, its = rows_of(somebody).order_by().values("pk").query.sql_with_params()
        except EmptyResultSet:  # .none(), or a filter that nothing can pass
            sql, its = "SELECT 1 WHERE false", ()
        statements.append(f"(SELECT count(*) FROM ({sql}) AS counted)")
        params.extend(its)
    for value in params:
        if not isinstance(value, str | int | float):
            raise TypeError(f"rows that are counted depend on {value!r}; use functions of the database")
    return f"SELECT {', '.join(statements)}", params
