"""A trace: every op of a run that was measured, whatever wrote it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Names of ops are those of ByteDance's traces, which other formats are read into.
FORWARD, BACKWARD = "forward-compute", "backward-compute"
RECOMPUTE, WEIGHT = "recompute", "weight-gradient"
OPTIMIZER, GARBAGE = "optimizer", "gc"
FORWARD_SEND, FORWARD_RECV = "forward-send", "forward-recv"
BACKWARD_SEND, BACKWARD_RECV = "backward-send", "backward-recv"
ALL_GATHER, REDUCE_SCATTER = "params-all-gather", "grads-reduce-scatter"
SEPARATE, LAYERNORM = "separate-grads-all-reduce", "layernorm-grads-all-reduce"
EMBEDDING, CLIP = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
ALL_REDUCE = "all-reduce"
KERNELS = "kernels"  # compute of a trace that does not tell forward from backward
# Transfers of our own spans: the time on the link, then the latency.
FORWARD_LINK, FORWARD_LATENCY = "forward-link", "forward-latency"
BACKWARD_LINK, BACKWARD_LATENCY = "backward-link", "backward-latency"

KINDS = (
    FORWARD,
    BACKWARD,
    RECOMPUTE,
    WEIGHT,
    OPTIMIZER,
    GARBAGE,
    FORWARD_SEND,
    FORWARD_RECV,
    BACKWARD_SEND,
    BACKWARD_RECV,
    ALL_GATHER,
    REDUCE_SCATTER,
    SEPARATE,
    LAYERNORM,
    EMBEDDING,
    CLIP,
    ALL_REDUCE,
    KERNELS,
    FORWARD_LINK,
    FORWARD_LATENCY,
    BACKWARD_LINK,
    BACKWARD_LATENCY,
)
KIND_OF = {name: number for number, name in enumerate(KINDS)}

# What a GPU computes for the model; the rest of a step is a bubble, as in `engine.simulate.timeline`.
BUSY = (FORWARD, BACKWARD, RECOMPUTE, WEIGHT, KERNELS)
# Ops whose ideal duration is the mean of their kind. Communication takes the median of its transfers.
COMPUTE = (FORWARD, BACKWARD, RECOMPUTE, WEIGHT, KERNELS, OPTIMIZER, GARBAGE)
# What slowdowns call an op that has two halves.
JOINED = {
    FORWARD_SEND: "forward-pp-comm",
    FORWARD_RECV: "forward-pp-comm",
    FORWARD_LINK: "forward-pp-comm",
    FORWARD_LATENCY: "forward-pp-comm",
    BACKWARD_SEND: "backward-pp-comm",
    BACKWARD_RECV: "backward-pp-comm",
    BACKWARD_LINK: "backward-pp-comm",
    BACKWARD_LATENCY: "backward-pp-comm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the GPUs of a run share the model: each (replica, stage) is one worker of the trace.

    chunks : model chunks of a stage.
    gpus : of the whole run, tensor parallel ones included; None: not known.
    sequence_parallel : GPUs that share a sequence, and the parameters' shards with all replicas.
    """

    replicas: int
    stages: int
    chunks: int = 1
    gpus: int | None = None
    sequence_parallel: int = 1

    @property
    def workers(self) -> int:
        return self.replicas * self.stages


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Every op of a run, one entry each in arrays of one length.

    kind : index into `KINDS`.
    index : of the ops of one kind, worker and step, in their order: 0, 1, …
    chunk : model chunk on the stage, −1 where it is of none.  position : of the chunk on the path of the
        whole model, −1 likewise.  microbatch : −1 where it is of none.
    start, end : seconds, on one clock for all workers of a step.
    duration : seconds; not exactly end − start where the format rounds both.
    notes : what the format lacks, or what was left out, in sentences.
    """

    format: str
    layout: Layout
    kind: NDArray[np.int8]
    replica: Ints
    stage: Ints
    step: Ints
    index: Ints
    chunk: Ints
    position: Ints
    microbatch: Ints
    start: Floats
    end: Floats
    duration: Floats
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    def is_kind(self, *names: str) -> NDArray[np.bool_]:
        """Which ops are of one of these kinds, shape (ops,)."""
        wanted = np.zeros(len(KINDS), dtype=np.bool_)
        wanted[[KIND_OF[name] for name in names]] = True
        return wanted[self.kind]
