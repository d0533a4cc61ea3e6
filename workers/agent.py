"""The node agent: `python -m workers.agent`, one per node, configured by the environment.

A Celery worker on the node's own queue (tasks run in this process's main thread and take seconds), the
supervisor of the rank processes, and the thread that publishes their events. SIGINT (Ctrl-C) stops the
ranks, sends what is left and ends, within 3 s as a rule and within 8 s on a busy machine. SIGTERM ends the
agent alone: its ranks train on (workers.shim), and the next agent of the node takes them over; so it is after
a kill. Exit status: 0 stopped, 2 bad configuration (or a version that does not go with the site's).
"""

import contextlib
import fcntl
import itertools
import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import IO, Any

import redis
from celery.signals import setup_logging
from celery.worker import state as worker_state
from redis.backoff import NoBackoff
from redis.retry import Retry

from engine import __version__
from engine.errors import InputError
from engine.job.events.gpus import GpuFigures
from engine.job.events.node import Clock, Heartbeat
from engine.private import private
from workers.app import create_app
from workers.clock import ClockWatch
from workers.config import AgentConfig, from_environment
from workers.gpus import GpuWatch, Nvml, process_memory
from workers.hardware import look_apart
from workers.ledger import Ledger
from workers.probe import Prober
from workers.publisher import Publisher
from workers.ranks import MakeGroup, RankSupervisor
from workers.rates import LinkMeter
from workers.samples import SamplePreviewer
from workers.shims import Shims
from workers.spool import Spool
from workers.tasks import register
from workers.version import refuse_skew

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
HARDWARE_EVERY = 15  # heartbeats
STOP_GRACE_S = 2.0  # for ranks, when the agent itself must end
LOCK_S = 5.0


class Agent:
    """The parts of one node's agent, in the order in which they start.

    Parameters
    ----------
    make_group : makes the ranks of a spec; None: those behind a shim.
    """

    def __init__(
        self,
        config: AgentConfig,
        make_group: MakeGroup | None = None,
    ) -> None:
        self.config = config
        folder = config.state_folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # logs, ledger, spool
        self._lock = _take_lock(config)
        self.publisher = Publisher(
            lambda: connect(config.broker_url),
            stream=config.stream,
            node=config.node,
            spool=Spool(folder / "spool", config.spool_mb * 1_000_000),
        )
        self.shims = Shims(self.publisher, config.keep_ranks_s)
        self.ranks = RankSupervisor(
            node=config.node,
            logs=folder / "ranks",
            ledger=Ledger(folder / "runs.json"),
            files=config.files,
            publish=self.publisher.put,
            make_group=make_group or self.shims.group,
            find_group=self.shims.found,
        )
        self.prober = Prober(host=config.host, publish=self.publisher.put)
        self.meter = LinkMeter(host=config.host, publish=self.publisher.put)
        self.previewer = SamplePreviewer(files=config.files, publish=self.publisher.put)
        self.clock = ClockWatch(lambda: connect(config.broker_url))
        self.gpus = GpuWatch(self._read_gpus, self.publisher.put_latest)
        self._hardware: dict[str, Any] | None = None
        self._nvml: Nvml | None = None
        self._told = False  # of the hardware, at least once
        self._stopping = threading.Event()
        self._stops_ranks = False

    def run(self) -> None:
        """Work until asked to stop; returns when ranks and events are dealt with."""
        self.publisher.start()
        if taken_over := self.ranks.take_over():
            log.warning(
                "took over the ranks of runs %s, which went on without an agent", ", ".join(taken_over)
            )
        if dead_ranks := self.ranks.report_gone():
            log.warning("%d ranks that this agent started before are gone", dead_ranks)
        self.clock.start()
        self.gpus.start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._look, name="hardware", daemon=True).start()
        threading.Thread(target=self._stop_ranks, name="stop", daemon=True).start()
        try:
            self._consume()
        finally:
            self._stopping.set()
            self.clock.stop()
            self.gpus.stop()
            if self._stops_ranks:
                self.ranks.stop_all(STOP_GRACE_S)
            self.publisher.stop()
            self.shims.let_go()
            self._lock.close()

    def _consume(self) -> None:
        """Run the Celery worker; again after a pause where it ends by itself (a broker that refuses us)."""
        app = create_app(self.config)
        register(app, self.ranks, self.prober, self.meter, self.previewer)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        while not self._stopping.is_set():
            worker = app.WorkController(
                pool="solo",
                concurrency=1,
                hostname=f"{self.config.node}@meridian",
                queues=[self.config.queue],
                without_gossip=True,
                without_mingle=True,
                without_heartbeat=True,
            )
            try:
                worker.start()
            except (KeyboardInterrupt, SystemExit):
                return
            except Exception as error:
                log.warning("the broker cannot be used (%s): trying again", error)
            self._stopping.wait(2.0)

    def _ask_to_stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stopping.is_set():
            return
        self._stops_ranks = number == signal.SIGINT
        self._stopping.set()
        worker_state.should_stop = 0  # the worker's loops look at this between two steps

    def _stop_ranks(self) -> None:
        """Stop the ranks as soon as the agent is asked to end: the worker takes up to a second to notice.

        Agents that are shut down together must stop their ranks before these fail for having lost each other.
        """
        self._stopping.wait()
        if self._stops_ranks:
            self.ranks.stop_all(STOP_GRACE_S)

    def _beat(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                return
            self.publisher.put_latest(self._heartbeat(number))
            self._stopping.wait(HEARTBEAT_S)

    def _heartbeat(self, number: int) -> Heartbeat:
        config, clock = self.config, self.clock.reading
        tells = self._hardware is not None and (number % HARDWARE_EVERY == 0 or not self._told)
        self._told |= tells
        return Heartbeat(
            t=time.time(),
            gpus=config.gpus,
            device=config.device,
            version=__version__,
            ranks=self.ranks.states(),
            clock=Clock(offset_ms=clock.offset_s * 1e3, rtt_ms=clock.rtt_s * 1e3) if clock else None,
            hardware=self._hardware if tells else None,
        )

    def _look(self) -> None:
        devices = look_apart(self.config.device)
        files = self.config.files
        devices["files"] = {"roots": list(files.roots), "schemes": list(files.schemes)}
        self._nvml = Nvml([gpu["uuid"] for gpu in devices.get("gpus", [])])
        self._hardware = devices

    def _read_gpus(self) -> list[GpuFigures]:
        """The figures of the GPUs; none of CUDA GPUs until the hardware has been looked at."""
        if self.config.device == "cuda":
            return self._nvml.read() if self._nvml else []
        return process_memory(self.ranks.processes())


def connect(url: str) -> "redis.Redis":
    """A client of the node's broker with short time-outs; the publisher does the retrying."""
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=1.0,
        socket_timeout=2.0,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )


def main() -> int:
    """Run the agent that the environment describes."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("celery.worker.strategy", "celery.app.trace", "kombu", "celery.bootsteps"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    setup_logging.connect(_keep_logging)
    try:
        config = from_environment(os.environ)
        refuse_skew(config, connect)
        agent = Agent(config)
    except InputError as error:
        sys.stderr.write(f"meridian agent: {error}\n")
        return 2
    log.info("node %s: %d GPUs (%s)", agent.config.node, agent.config.gpus, agent.config.device)
    agent.run()
    log.info("node %s: agent stopped", agent.config.node)
    return 0


def _keep_logging(**kwargs: object) -> None:
    """Connecting to this signal keeps Celery from configuring logging."""


def _take_lock(config: AgentConfig) -> IO[str]:
    """Hold the node's folder; a predecessor that is just ending gets some seconds.

    Raises
    ------
    InputError
        Another agent of this node runs on this machine.
    """
    file = open(config.state_folder / "lock", "a+", encoding="utf-8", opener=private)  # noqa: SIM115
    deadline = time.monotonic() + LOCK_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            return file
        if time.monotonic() > deadline:
            file.seek(0)
            raise InputError(
                "MERIDIAN_NODE",
                config.node,
                f"an agent of this node is running already: process {file.read()}",
            )
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
