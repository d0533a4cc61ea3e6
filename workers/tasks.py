"""What the control plane may ask of a node. Each returns within seconds and may safely come twice."""

import json
import logging
from typing import Any

from celery import Celery

from workers.ranks import RankSupervisor

log = logging.getLogger(__name__)


def register(app: Celery, ranks: RankSupervisor) -> None:
    """Add the node's tasks to `app`, acting on `ranks`."""

    @app.task(name="workers.start_ranks")
    def start_ranks(spec: str | dict[str, Any]) -> None:
        """Start the local ranks of a LaunchSpec given as JSON."""
        text = spec if isinstance(spec, str) else json.dumps(spec)
        log.info("start_ranks: %s", ranks.start(text))

    @app.task(name="workers.stop_ranks")
    def stop_ranks(run: str, generation: int, grace_s: float = 5.0) -> None:
        """Stop the ranks of a run, up to this generation."""
        log.info("stop_ranks %s: %s", run, ranks.stop(str(run), int(generation), float(grace_s)))
