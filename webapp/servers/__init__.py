"""PostgreSQL and Valkey without an installation: the same engines as in production, from pip packages.

Where DATABASE_URL and VALKEY_URL are not set, the supervisor runs both servers under ``var/`` and
records their URLs in ``var/servers.json``; every other process finds them with `endpoints()`.
Plain Python: nothing here imports Django.
"""

from webapp.servers.embedded import EmbeddedServers, running
from webapp.servers.endpoints import Endpoints, endpoints
from webapp.servers.errors import AlreadyRunning, NotRunning, ServersError
from webapp.servers.places import var_folder

__all__ = [
    "AlreadyRunning",
    "EmbeddedServers",
    "Endpoints",
    "NotRunning",
    "ServersError",
    "endpoints",
    "running",
    "var_folder",
]
