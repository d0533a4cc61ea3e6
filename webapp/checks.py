"""Refusing to start without the database and the broker, with what to do about it."""

import sys
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured


def require_servers() -> None:
    """Raise ImproperlyConfigured where no database or broker is known (see `webapp.servers.endpoints`)."""
    if settings.SERVERS_ERROR:
        raise ImproperlyConfigured(settings.SERVERS_ERROR)


@register(Tags.database)
def servers_known(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Run by `migrate`: says what to start instead of a traceback out of the dummy backend."""
    if "migrate" not in sys.argv:  # check and makemigrations ask too, but need no database
        return []
    return [Error(settings.SERVERS_ERROR, id="meridian.E001")] if settings.SERVERS_ERROR else []
