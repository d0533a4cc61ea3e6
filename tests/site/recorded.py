"""Rows that many tests begin with: made once in a process, and written again for each test."""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from django.apps import apps
from django.db import connection, models, transaction
from django.utils import timezone

Made = TypeVar("Made")


class Recorded(Generic[Made]):
    """What `make` writes in the database and returns, for one test after another.

    Each test gets the same rows with the same keys, which their sequences have left behind, and objects of
    its own. Their times move on, so that what was made just now is from just now.
    """

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._at = timezone.now()
        with transaction.atomic():
            before = dict(_rows())
            value = make()
            added = {table: _added(before.get(table, []), rows) for table, rows in _rows()}
            transaction.set_rollback(True)
        self._pickled = pickle.dumps(value)
        self._rows = {table: json.dumps(rows) for table, rows in added.items() if rows}
        self._statement = "; ".join(_insert(table) for table in self._rows)

    def again(self) -> Made:
        """Write the rows once more. Outside a transaction `make` runs: some of it may wait for a commit."""
        if not connection.in_atomic_block:
            return self._make()
        passed = timezone.now() - self._at
        with connection.cursor() as cursor:
            cursor.execute(self._statement, {**self._rows, "passed": passed})
        value: Made = pickle.loads(self._pickled)
        for row in _models(value, set()):
            _move(row, passed)
        return value


def _rows() -> Iterator[tuple[str, list[Any]]]:
    """Each table of the site and its rows."""
    with connection.cursor() as cursor:
        for model in apps.get_models(include_auto_created=True):
            table = model._meta.db_table
            cursor.execute(f'SELECT json_agg(x)::text FROM "{table}" x')
            yield table, json.loads(cursor.fetchone()[0] or "[]")


def _added(before: list[Any], after: list[Any]) -> list[Any]:
    assert all(row in after for row in before), "what is recorded may add rows, and change none"
    return [row for row in after if row not in before]


def _insert(table: str) -> str:
    """The statement that writes the rows of `table`, a parameter of that name, later by `passed`."""
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, table)
        kinds = {c.name: connection.introspection.get_field_type(c.type_code, c) for c in columns}
    names = ", ".join(f'"{name}"' for name in kinds)
    values = ", ".join(
        f'"{name}" + %(passed)s' if kind == "DateTimeField" else f'"{name}"' for name, kind in kinds.items()
    )
    return (
        f'INSERT INTO "{table}" ({names}) '
        f'SELECT {values} FROM json_populate_recordset(NULL::"{table}", %({table})s)'
    )


def _models(part: Any, seen: set[int]) -> Iterator[models.Model]:
    """All rows that `made` holds, each once, and those that they refer to and have at hand."""
    if id(part) in seen:
        return
    seen.add(id(part))
    inner: Any = ()
    if isinstance(part, models.Model):
        yield part
        inner = part._state.fields_cache.values()
    elif isinstance(part, dict):
        inner = part.values()
    elif isinstance(part, list):
        inner = part
    elif is_dataclass(part):
        inner = [getattr(part, field.name) for field in fields(part)]
    for value in inner:
        yield from _models(value, seen)


def _move(row: models.Model, passed: timedelta) -> None:
    """Make the times of `row` later by `passed`."""
    for field in row._meta.concrete_fields:
        if isinstance(field, models.DateTimeField) and (value := row.__dict__.get(field.attname)):
            row.__dict__[field.attname] = value + passed
