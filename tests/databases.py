"""The database of each test process: a copy of one that the first process to need it migrates for all."""

import psycopg
from django.db import connection
from psycopg import sql

LOCK = 20_260  # an advisory lock of the server; any number does
MIGRATED, BEGUN = "test_migrated", "test_begun"


def create(name: str) -> None:
    """Create the database `name`, migrated and empty, and have Django's connection use it from now on."""
    values = connection.settings_dict
    with psycopg.connect(
        host=values["HOST"],
        port=values["PORT"],
        user=values["USER"],
        password=values["PASSWORD"],
        dbname="postgres",
        autocommit=True,
    ) as server:
        server.execute("SELECT pg_advisory_lock(%s)", [LOCK])  # until this connection is closed
        known = server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [MIGRATED]).fetchone()
        if not known:
            _migrate(server)
        _run(server, "CREATE DATABASE {} TEMPLATE {}", name, MIGRATED)
        # A crash may lose what tests wrote: they need not wait for the disk.
        _run(server, "ALTER DATABASE {} SET synchronous_commit = off", name)
    _use(name)


def _migrate(server: psycopg.Connection) -> None:
    """Migrate under another name: where a migration fails, no process takes half of them for all."""
    connection.settings_dict["TEST"]["NAME"] = BEGUN
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    connection.close()
    connection.close_pool()
    _run(server, "ALTER DATABASE {} RENAME TO {}", BEGUN, MIGRATED)


def _use(name: str) -> None:
    connection.close()
    connection.close_pool()
    connection.settings_dict["NAME"] = name


def _run(server: psycopg.Connection, statement: str, *names: str) -> None:
    server.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
