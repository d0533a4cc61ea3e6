"""Databases of versions before 0.1.0: recognised, so that they are neither changed nor half understood."""

import os
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db.migrations.exceptions import InconsistentMigrationHistory, NodeNotFoundError
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder


def refusal(connection: Any) -> str:
    """Why the database behind `connection` cannot be used, and what to do, in one line; empty where it can.

    Each app begins with one migration. Some took the place of several: a database that has all of those is
    as one that has their successor. One that has some of them, others of ours, or any in an order that
    cannot be, was made by a version that was never released, and nothing leads from there to here.
    """
    disk = MigrationLoader(None, ignore_no_migrations=True).disk_migrations
    known = {*disk, *(replaced for migration in disk.values() for replaced in migration.replaces)}
    ours = {app.label for app in apps.get_app_configs() if app.name.startswith("webapp.")}
    applied = MigrationRecorder(connection).applied_migrations()
    unknown = sorted(f"{app}.{name}" for app, name in applied if app in ours and (app, name) not in known)
    try:
        MigrationLoader(connection, ignore_no_migrations=True).check_consistent_history(connection)
    except NodeNotFoundError:
        unknown = unknown or ["only some of the migrations that became one"]
    except InconsistentMigrationHistory:
        unknown = unknown or ["migrations in an impossible order"]
    if not unknown:
        return ""
    reason = f"was made by another version of Meridian (it has {unknown[0]})"
    if os.environ.get("DATABASE_URL"):
        return f"the database of DATABASE_URL {reason}: point DATABASE_URL at an empty database"
    return (
        f"the database in {settings.VAR} {reason}: move that folder away, or set MERIDIAN_VAR to another one"
    )
