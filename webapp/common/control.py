"""Sends tasks to the control plane's own workers, by name and with JSON arguments."""

import threading
from typing import Any

from celery import Celery
from django.conf import settings

_sender: Celery | None = None
_making = threading.Lock()


def celery_settings() -> dict[str, Any]:
    """How a Celery app reaches the control plane's queues: keys under `control:`, which no node can touch."""
    return {
        "broker_url": settings.VALKEY_URL,
        "broker_transport_options": {
            "global_keyprefix": "control:",
            "visibility_timeout": 600,
            "socket_connect_timeout": 3,
            "socket_timeout": 30,
            "retry_on_timeout": True,
        },
        "task_default_queue": "control",
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "timezone": "UTC",
    }


def send_task(name: str, *args: Any, **options: Any) -> None:
    """Put the task `name` with `args` into a queue; without a retry where the broker is away.

    options : of Celery's send_task: `queue` (control), `countdown` and `expires` in seconds.

    Raises
    ------
    OperationalError, RedisError
        Of kombu and redis: the broker does not take it.
    """
    _shared().send_task(name, args, retry=False, **options)


def _shared() -> Celery:
    global _sender
    with _making:
        if _sender is None:
            app = Celery("sender", set_as_current=False)
            app.conf.update(celery_settings())
            _sender = app
        return _sender
