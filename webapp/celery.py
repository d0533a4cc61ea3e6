"""The control plane's Celery app: reconcile and upkeep on beat, queue ``control``, keys under ``control:``.

Nodes have an app of their own with their own key prefix (workers/); this one never shares keys with them.
No task on queue ``control`` runs longer than seconds; searches have queue ``search`` and a worker of
their own. No result is kept: state is in our tables.
"""

import os
import sys

import structlog
from celery import Celery
from celery.signals import setup_logging, task_postrun, task_prerun, worker_init, worker_ready

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from webapp.checks import require_servers
from webapp.common.control import celery_settings

require_servers()
app = Celery("control")
app.conf.update(
    **celery_settings(),
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_time_limit=60,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    beat_max_loop_interval=2,
    beat_scheduler="webapp.beat:Scheduler",
    beat_schedule={
        "sessions": {"task": "accounts.upkeep", "schedule": 3600.0, "options": {"expires": 3600}},
        # A reconcile that could not start before the next one is due is worth nothing: it expires.
        "reconcile": {"task": "jobs.reconcile", "schedule": 2.0, "options": {"expires": 2}},
        "computations": {"task": "computations.requeue_lost", "schedule": 10.0, "options": {"expires": 10}},
        "tenancies": {"task": "prefill.upkeep", "schedule": 10.0, "options": {"expires": 10}},
        "open requests": {"task": "prefill.settle", "schedule": 15.0, "options": {"expires": 15}},
        "retention": {"task": "live.retention", "schedule": 30.0, "options": {"expires": 30}},
    },
)
app.autodiscover_tasks(
    ["webapp.accounts", "webapp.computations", "webapp.jobs", "webapp.live", "webapp.prefill"]
)


@task_prerun.connect
def _name_task(task_id: str, **kwargs: object) -> None:
    """What a task logs, and the audit rows that it writes, carry its id."""
    structlog.contextvars.bind_contextvars(task_id=task_id)


@task_postrun.connect
def _forget_task(**kwargs: object) -> None:
    structlog.contextvars.unbind_contextvars("task_id")


@setup_logging.connect
def _own_logging(**kwargs: object) -> None:
    """Keep Django's LOGGING: connecting to this signal stops Celery from configuring its own."""


@worker_init.connect
def refuse_other_sites(**kwargs: object) -> None:
    """End the worker with status 2 where another site uses the broker: it would take that one's tasks."""
    import django
    from django.db import DatabaseError
    from redis import RedisError

    django.setup()
    from webapp.computations.claim import BrokerTaken, claim_broker

    try:
        claim_broker()
    except BrokerTaken as error:
        sys.stderr.write(f"meridian: {error}\n")
        sys.exit(2)
    except (DatabaseError, RedisError, OSError):
        pass  # the worker waits for both


@worker_ready.connect
def _tell_nodes(**kwargs: object) -> None:
    """Give the broker what it may have lost while the site was down, and nodes our version."""
    import structlog
    from django.db import DatabaseError
    from redis import RedisError

    from webapp.common.broker import client
    from webapp.inventory.services import sync_acl

    try:
        sync_acl(client())
    except (DatabaseError, RedisError, OSError) as error:
        structlog.get_logger(__name__).warning(
            "the nodes could not be told that the site started", error=str(error)
        )
