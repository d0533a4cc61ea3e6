"""What the control plane may ask of a node. Each returns within seconds and may safely come twice."""

import json
import logging
from typing import Any

from celery import Celery

from workers.probe import Prober
from workers.ranks import RankSupervisor
from workers.rates import LinkMeter
from workers.samples import SamplePreviewer

log = logging.getLogger(__name__)


def register(
    app: Celery,
    ranks: RankSupervisor,
    prober: Prober,
    meter: LinkMeter,
    previewer: SamplePreviewer,
) -> None:
    """Add the node's tasks to `app`, acting on the parts of its agent."""

    @app.task(name="workers.start_ranks")
    def start_ranks(spec: str | dict[str, Any]) -> None:
        """Start the local ranks of a LaunchSpec given as JSON."""
        text = spec if isinstance(spec, str) else json.dumps(spec)
        log.info("start_ranks: %s", ranks.start(text))

    @app.task(name="workers.stop_ranks")
    def stop_ranks(run: str, generation: int, grace_s: float = 5.0, boundary: bool = False) -> None:
        """Stop the ranks of a run, up to this generation; with `boundary` after a whole iteration."""
        stopping = ranks.stop(str(run), int(generation), float(grace_s), boundary=bool(boundary))
        log.info("stop_ranks %s: %s", run, stopping)

    @app.task(name="workers.probe_peers")
    def probe_peers(
        probe: str, secret: str, port: int, peers: list[dict[str, Any]], seconds: float = 6.0
    ) -> None:
        """Listen on `port` for `seconds`, ask `peers`, and tell of it in a `probe` event."""
        log.info("probe_peers: %s", prober.start(str(probe), secret, int(port), peers, float(seconds)))

    @app.task(name="workers.measure_link")
    def measure_link(
        trial: str,
        secret: str,
        port: int,
        counts: list[int],
        peer: dict[str, Any] | None = None,
        emulated: dict[str, Any] | None = None,
        seconds: float = 1.0,
        patience_s: float = 10.0,
    ) -> None:
        """Measure the rate to `peer` and tell of it in a `rates` event; without one, listen on `port`."""
        measuring = meter.start(
            str(trial),
            str(secret),
            port=int(port),
            peer=peer,
            counts=counts,
            emulated=emulated,
            seconds=float(seconds),
            patience_s=float(patience_s),
        )
        log.info("measure_link: %s", measuring)

    @app.task(name="workers.preview_samples")
    def preview_samples(preview: str, job: dict[str, Any], dc: str) -> None:
        """Read the first samples of the document of a job, and tell of them in a `samples` event."""
        log.info("preview_samples: %s", previewer.start(str(preview), job, str(dc)))
