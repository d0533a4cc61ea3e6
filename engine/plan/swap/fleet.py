"""Several workers, of one GPU type or mixed: a global batch that they fill together, and its all-reduce.

Each worker swaps through its own copy of the model at its own pace; heartbeats count the mini-batches of all,
and when they reach the global batch the workers all-reduce (ATOM §III-E).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.cluster.collectives import sent_bytes

# A step that ends within this share of a time counts as ended by then.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """`count` workers of one kind: mini-batches and seconds of their step, seconds to load sub-model 0."""

    label: str
    count: int
    accumulation: int
    step_s: float
    first_load_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Workers that train together.

    allreduce_s : ring all-reduce of all gradients; None if the network is not known.
    batch_s : until the global batch is full;  update_s : that, the all-reduce, and loading the updated
        first sub-model, which alone stays on the device across steps. The optimizer is not included.
    """

    workers: tuple[Worker, ...]
    gradient_bytes: float
    allreduce_s: float | None
    global_batch: int | None
    batch_s: float | None

    @property
    def update_s(self) -> float | None:
        if self.batch_s is None or self.allreduce_s is None:
            return None
        return self.batch_s + self.allreduce_s + max(worker.first_load_s for worker in self.workers)

    @property
    def minibatches_per_s(self) -> float:
        """Of all workers together, between two all-reduces."""
        return math.fsum(worker.count * worker.accumulation / worker.step_s for worker in self.workers)

    def as_dict(self) -> dict[str, Any]:
        """As `meridian swap` prints it."""
        return {
            "workers": [
                {
                    "gpu": worker.label,
                    "count": worker.count,
                    "accumulation": worker.accumulation,
                    "step_s": worker.step_s,
                }
                for worker in self.workers
            ],
            "minibatches_per_s": self.minibatches_per_s,
            "gradient_bytes": self.gradient_bytes,
            "allreduce_s": self.allreduce_s,
            "global_batch": self.global_batch,
            "batch_s": self.batch_s,
            "update_s": self.update_s,
        }


def ring_allreduce_s(payload_bytes: float, workers: int, bytes_per_s: float) -> float:
    """Seconds of a ring all-reduce of `payload_bytes` over a link per worker and direction."""
    _, sent = sent_bytes("allreduce", payload_bytes, 1, workers)
    return float(sent / bytes_per_s)


def seconds_to_fill(workers: Sequence[Worker], batch: int) -> float:
    """When the mini-batches of whole steps of all workers first reach `batch`; all start together."""

    def done(seconds: float) -> int:
        return sum(
            w.count * w.accumulation * math.floor(seconds / w.step_s * (1 + ROUNDING)) for w in workers
        )

    def first_step(worker: Worker) -> float:
        """The end of the first step of `worker` by which the batch is full."""
        alone = math.ceil(batch / (worker.count * worker.accumulation))
        steps = bisect_left(range(alone), True, lo=1, key=lambda n: done(n * worker.step_s) >= batch)
        return steps * worker.step_s

    return min(first_step(worker) for worker in workers)
