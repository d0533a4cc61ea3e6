"""Databases of versions before 0.1.0: recognised, so that they are neither changed nor half understood."""

import os
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db.migrations.exceptions import InconsistentMigrationHistory
from django.db.migrations.loader import MigrationLoader


def refusal(connection: Any) -> str:
    """Why the database behind `connection` cannot be used, and what to do, in one line; empty where it can.

    Each app begins with one migration. A database that has others of ours, or has them in an order that
    cannot be, was made by a version that was never released, and nothing leads from there to here.
    """
    loader = MigrationLoader(connection, ignore_no_migrations=True)
    ours = {app.label for app in apps.get_app_configs() if app.name.startswith("webapp.")}
    unknown = sorted(
        f"{app}.{name}"
        for app, name in loader.applied_migrations
        if app in ours and (app, name) not in loader.disk_migrations
    )
    try:
        loader.check_consistent_history(connection)
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
