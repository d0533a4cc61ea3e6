"""Control-plane tasks of runs."""

from celery import shared_task
from django.db import connection

from webapp.computations import liveness
from webapp.inventory.dispatch import send_task

RECONCILE_LOCK = 7_201_406  # of PostgreSQL's advisory locks; any number that nothing else uses


@shared_task(name="jobs.reconcile")
def reconcile() -> None:
    """One round of the reconciler, unless one is at work already."""
    from webapp.jobs.reconcile import reconcile as one_round

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [RECONCILE_LOCK])
        if not cursor.fetchone()[0]:
            return
        try:
            one_round(send_task)
            liveness.beat(liveness.RECONCILER)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [RECONCILE_LOCK])
