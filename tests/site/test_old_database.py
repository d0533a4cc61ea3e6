"""A database that a version before 0.1.0 made is left alone, with one line that says what to do."""

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from webapp.site.old_database import refusal


def write(statement: str, *values: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def test_a_database_of_this_version_is_taken(db: Any) -> None:
    assert refusal(connection) == ""


def test_a_migration_that_is_gone_tells(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write("INSERT INTO django_migrations (app, name, applied) VALUES ('planning', '0002_x', now())")
    monkeypatch.setenv("DATABASE_URL", "postgres://elsewhere/meridian")
    message = refusal(connection)
    assert "planning.0002_x" in message
    assert message.endswith("point DATABASE_URL at an empty database")
    monkeypatch.delenv("DATABASE_URL")
    assert refusal(connection).endswith("move that folder away, or set MERIDIAN_VAR to another one")


def test_so_does_an_order_that_cannot_be(db: Any) -> None:
    write("DELETE FROM django_migrations WHERE app = 'computations'")
    assert "migrations in an impossible order" in refusal(connection)


def test_migrations_that_became_one_count_as_it_if_all_are_there(db: Any) -> None:
    one = MigrationLoader(None).disk_migrations["jobs", "0001_squashed"]
    write("DELETE FROM django_migrations WHERE app = 'jobs'")
    insert = "INSERT INTO django_migrations (app, name, applied) VALUES (%s, %s, now())"
    for replaced in one.replaces:
        write(insert, *replaced)
    assert refusal(connection) == ""
    write("DELETE FROM django_migrations WHERE app = 'jobs' AND name = %s", one.replaces[-1][1])
    assert "it has only some of the migrations that became one" in refusal(connection)


def test_migrate_refuses_it_in_one_line(db: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write("INSERT INTO django_migrations (app, name, applied) VALUES ('jobs', '0011_disturbed', now())")
    with pytest.raises(SystemExit) as ended:
        call_command("migrate", "--no-input", verbosity=0)
    message = capsys.readouterr().err
    assert (ended.value.code, message.count("\n")) == (2, 1)
    assert message.startswith("meridian: the database ")
    assert "jobs.0011_disturbed" in message
