"""Telling others after the commit that a run has changed: ingest for the browsers, the reconciler to act."""

from collections.abc import Sequence

import structlog
from django.db import transaction

from webapp.common import broker
from webapp.common.control import send_task

log = structlog.get_logger(__name__)


def run_changed(run_id: int) -> None:
    """Once the transaction is committed, let ingest tell the browsers."""
    transaction.on_commit(lambda: broker.announce(run_id))


def reconcile_soon(*after_s: float) -> None:
    """Once the transaction is committed, have the reconciler run at once instead of at its next beat.

    `after_s` asks for rounds so many seconds later instead.
    """
    transaction.on_commit(lambda: _reconcile(after_s or (0.0,)))


def _reconcile(after_s: Sequence[float]) -> None:
    try:
        for seconds in after_s:
            send_task("jobs.reconcile", countdown=seconds or None, expires=seconds + 5)
    except Exception as error:  # whatever kombu raises while the broker is down: the beat will do it
        log.warning("reconcile not sent, the next beat does it", error=str(error))
        broker.health(max_age_s=0)
