"""Input and state of the event loop over positions: the types that its kernels share."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Cell(NamedTuple):
    """The constant input. `pipelines` is 1 if pipelines share no link: all of them then do the same."""

    pipelines: int
    microbatches: int
    chunks: int
    durations: Floats  # (4 kinds, stages) of one chunk
    transfer_time: Floats  # (hops,)
    latency: Floats
    stage_of: Ints  # (positions,)
    chunk_of: Ints
    position_of: Ints  # (stages, chunks)
    link_of: Ints  # (2 · edges,) link of each transfer, direction · P + hop; -1 within a stage
    transfer_of: Ints  # (2, hops, chunks), see Traversal.transfer_of
    shared: Bools  # (2 · hops,), one link for all pipelines of the cell
    queued: Bools  # (2 · hops,), whether the link has a choice of messages
    cap: Ints  # (stages,), most chunks held
    full_cap: Ints  # (stages,), most chunks whose full activations are held
    window: int  # most microbatches between F and the end at position 0
    release: Floats  # (microbatches,), earliest start of F at position 0
    backwards: Ints  # (microbatches,), the order in which microbatches go back, the same at all positions
    keys: Floats  # (3: F, B, W; pipelines, positions, microbatches), the smaller the sooner
    patience: float  # a GPU waits for a more urgent op that comes within this share of the op at hand
    split: bool
    gate: int
    tie: int
    fixed: bool
    instant: float


class State(NamedTuple):
    """The progress so far."""

    started: Ints  # (4, pipelines, positions), how many ops of each kind have begun
    free: Floats  # (pipelines, stages)
    last: Ints  # (pipelines, stages), code of the last op, -1 before the first
    held: Ints  # (pipelines, stages), chunks
    full: Ints
    activation: Floats  # (pipelines, positions, microbatches), arrival; inf while unknown
    gradient: Floats
    produced_at: Floats  # (2 · edges, pipelines, microbatches), end of the producing op, for queued links
    sent: Ints  # (2 · edges, pipelines), messages sent
    link_free: Floats  # (2 · hops, pipelines); a shared link uses pipeline 0
    link_last: Ints  # (2 · hops,), the last sender on a shared link
    wake: Floats  # a tree of GPUs, then links, see `wake_tree`
    order: NDArray[np.int32]  # (pipelines, stages, longest), op codes
    length: Ints  # (pipelines, stages)
    link_order: NDArray[np.int32]  # (2 · hops, pipelines · chunks · M), codes of messages of queued links
    link_length: Ints  # (2 · hops, pipelines)
    log: Ints  # ops and messages, causes first, see `_log`; may be empty
    logged: Ints  # (1,)
