"""Computations, which the search worker does one after another."""

import threading
import uuid
from typing import Any

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down

# Set when the worker is told to end: what it computes goes back into the queue.
_ending = threading.Event()
BEAT_S = 10


@worker_ready.connect
def _live(sender: Any, **kwargs: object) -> None:
    """The search worker says that it lives, whatever it computes."""
    if sender.hostname.startswith("search@"):
        threading.Thread(target=_beat, name="beat", daemon=True).start()


def _beat() -> None:
    import structlog
    from django.db import DatabaseError, connection

    from webapp.computations import liveness

    while True:
        try:
            liveness.beat(liveness.SEARCH)
        except DatabaseError as error:
            structlog.get_logger(__name__).warning("no beat: no database", reason=str(error))
            connection.close()
        if _ending.wait(BEAT_S):
            return


@worker_shutting_down.connect
def _end(**kwargs: object) -> None:
    _ending.set()


@shared_task(name="computations.compute", time_limit=None, acks_late=False)
def compute(pk: str) -> None:
    """Answer one computation, if it still waits for an answer."""
    from webapp.computations.computing import work_at

    work_at(uuid.UUID(pk), ending=_ending.is_set)


@shared_task(name="computations.requeue_lost")
def requeue_lost() -> None:
    """Send again the computations whose worker or message was lost."""
    from webapp.computations import services

    services.requeue_lost()
