"""What the event loop over places knows of a cell, and how far it is: the types that its kernels share."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Cell(NamedTuple):
    """What does not change. `pipelines` is 1 where pipelines do not meet: all do the same then."""

    pipelines: int
    microbatches: int
    chunks: int
    durations: Floats  # (4 kinds, stages) of one chunk
    transfer: Floats  # (hops,)
    latency: Floats
    stage_of: Ints  # (places,)
    chunk_of: Ints
    place_of: Ints  # (stages, chunks)
    link_of: Ints  # (2 · edges,) link of each crossing, direction · P + hop; -1 within a stage
    crossings: Ints  # (2, hops, chunks), see Traversal.crossings
    shared: Bools  # (2 · hops,), one link for all pipelines of the cell
    queued: Bools  # (2 · hops,), whether the link has a choice of messages
    cap: Ints  # (stages,), most chunks held
    full_cap: Ints  # (stages,), most chunks whose full activations are held
    window: int  # most microbatches between F and the end at place 0
    release: Floats  # (microbatches,), when F at place 0 may start
    backwards: Ints  # (microbatches,), the order in which microbatches go back, the same at all places
    keys: Floats  # (3: F, B, W; pipelines, places, microbatches), the smaller the sooner
    patience: float  # waits for a more urgent op that comes within this share of the op at hand
    split: bool
    gate: int
    tie: int
    fixed: bool
    instant: float


class State(NamedTuple):
    """What has happened so far."""

    started: Ints  # (4, pipelines, places), how many ops of each kind have begun
    free: Floats  # (pipelines, stages)
    last: Ints  # (pipelines, stages), code of the last op, -1 before the first
    held: Ints  # (pipelines, stages), chunks
    full: Ints
    activation: Floats  # (pipelines, places, microbatches), arrival; inf while unknown
    gradient: Floats
    made: Floats  # (2 · edges, pipelines, microbatches), end of the producing op; only for queued links
    sent: Ints  # (2 · edges, pipelines), messages sent
    link_free: Floats  # (2 · hops, pipelines); a shared link uses pipeline 0
    link_last: Ints  # (2 · hops,), who used a shared link last
    wake: Floats  # a tree of GPUs, then links, see `wake_tree`
    order: NDArray[np.int32]  # (pipelines, stages, longest), op codes
    length: Ints  # (pipelines, stages)
    link_order: NDArray[np.int32]  # (2 · hops, pipelines · chunks · M), codes of messages of queued links
    link_length: Ints  # (2 · hops, pipelines)
    log: Ints  # everything in an order in which causes come first, see `_log_op`; may be empty
    logged: Ints  # (1,)
