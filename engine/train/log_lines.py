"""What a rank writes to its log: who it is, how far training is, and what changes on the way.

Lines go to standard error. The host adds the time, keeps them in the rank's log file and hands them on.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable

from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.nn.device import Device
from engine.train.recorder import peak_rss_mb

log = logging.getLogger(__name__)
FIRST_RANK_EVERY_S = 10.0
OTHER_RANKS_EVERY_S = 60.0


def start_log() -> None:
    """Send the log records of this process to its standard error, one line each."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s", force=True)


def log_start(
    spec: LaunchSpec,
    me: RankAssignment,
    *,
    part: str,
    layers: list[int],
    parameters: int,
    peers: Iterable[str],
    device: Device,
) -> None:
    """Say what this rank is.

    part : its part of the run, in words.
    layers : the numbers of its layers in the model.
    peers : the ranks that it sends messages to, in words.
    """
    log.info("Rank %d of %d, in %s: %s.", me.rank, len(spec.ranks), me.dc_name, part)
    log.info("Model: layers %s, %s parameters, %s.", ranges(layers), f"{parameters:,}", spec.job.device.dtype)
    log.info("Device: %s, GPU %d of node %s; %s.", spec.job.device.kind, me.gpu, me.node, memory_of(device))
    log.info("Peers: %s.", ", ".join(peers) or "none")


def part_of(job: TrainJob, me: RankAssignment) -> str:
    """The part of a rank in a pipeline, in words; stages, pipelines and shards count from 0, as in spans."""
    shard = f", shard {me.shard} of {job.cell.tp}" if job.cell.tp > 1 else ""
    return f"stage {me.stage} of {job.cell.stages}, pipeline {me.pipeline} of {job.cell.pipelines}{shard}"


def memory_of(device: Device) -> str:
    """The peak memory of this process so far, in words: of the host, and of its GPU if it has one."""
    of_gpu = device.peak_bytes()
    host = f"peak memory {peak_rss_mb():,.0f} MB"
    return host if of_gpu is None else f"{host}, {of_gpu / 1e9:.2f} GB on the GPU"


def ranges(numbers: list[int]) -> str:
    """Whole numbers as ranges: [0, 1, 2, 5] → "0–2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in parts)


class ProgressLog:
    """Says how far training is, every so often; the first and the last iteration always.

    Parameters
    ----------
    every_s : seconds between two lines.
    clock : seconds that only go forward.
    """

    def __init__(self, job: TrainJob, *, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._every_s, self._clock = job, every_s, clock
        self._lock = threading.Lock()  # losses come from a thread, in recovery from another one
        self._line_at: float | None = None
        self._line_steps = 0

    def add(self, iteration: int, loss: float | None = None, norm: float | None = None) -> None:
        """Iteration `iteration`, counted from 0, is over; loss and gradient norm if this rank knows them."""
        with self._lock:
            now, steps, job = self._clock(), iteration + 1, self._job
            waits = self._line_at is not None and now - self._line_at < self._every_s
            if waits and steps != job.optimizer.steps:
                return
            parts = [] if loss is None else [f"loss {loss:.4f}", f"gradient norm {norm:.3g}"]
            parts += self._speed(now, steps)
            self._line_at, self._line_steps = now, steps
        more = "".join(f", {part}" for part in parts)
        log.info("Iteration %s of %s%s.", f"{steps:,}", f"{job.optimizer.steps:,}", more)

    def _speed(self, now: float, steps: int) -> list[str]:
        """Since the last line, in words; none for the first line, or after a step back."""
        done = steps - self._line_steps
        if self._line_at is None or done <= 0 or now <= self._line_at:
            return []
        each_s = (now - self._line_at) / done
        return [f"{each_s:.3f} s/iteration", f"{self._job.tokens_per_step / each_s:,.0f} tokens/s"]
