"""The Celery app of one node: one queue, keys under the node's prefix, nothing shared with other nodes."""

import ssl
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

from workers.config import AgentConfig
from workers.transport import Transport


def create_app(config: AgentConfig) -> Celery:
    """Return the app of the node in `config`, without tasks (workers.tasks adds them)."""
    # No fixups: with DJANGO_SETTINGS_MODULE in the environment Celery would load Django.
    app = Celery("workers", set_as_current=False, fixups=set())
    exchange = Exchange(config.queue, type="direct")
    app.conf.update(
        broker_url=config.broker_url,
        broker_transport=f"{Transport.__module__}:{Transport.__qualname__}",
        broker_use_ssl=_tls(config.broker_url),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # an agent outlives any absence of its broker
        broker_channel_error_retry=True,
        broker_transport_options={
            "global_keyprefix": config.prefix,
            "priority_steps": [0],  # one key: the queue's own
            "socket_connect_timeout": 2,
            "socket_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "client_name": f"node-{config.node}",
        },
        # The site declares the queue when it sends; a node may not write there.
        task_queues=[Queue(config.queue, exchange, routing_key=config.queue, no_declare=True)],
        task_default_queue=config.queue,
        task_default_exchange=config.queue,
        task_default_routing_key=config.queue,
        task_ignore_result=True,  # state comes back as events; there is no result backend
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        timezone="UTC",
    )
    return app


def _tls(url: str) -> dict[str, Any] | None:
    """What the consumer is to check of the broker's certificate.

    kombu takes TLS from the scheme for its own transport only, and then checks no certificate.
    """
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED} if url.startswith("rediss:") else None
