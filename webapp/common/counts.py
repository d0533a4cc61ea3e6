"""How many rows several querysets have, asked at once."""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet


def counts_of(querysets: Sequence[QuerySet[Any]]) -> list[int]:
    """The `count()` of each, none of them a slice, asked at once, as every page does."""
    statements: list[str] = []
    params: list[Any] = []
    for queryset in querysets:
        try:
            sql, its = queryset.order_by().values("pk").query.sql_with_params()
        except EmptyResultSet:  # .none(), or a filter that nothing can pass
            sql, its = "SELECT 1 WHERE false", ()
        statements.append(f"(SELECT count(*) FROM ({sql}) AS counted)")
        params.extend(its)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(statements)}", params)
        return list(cursor.fetchone())
