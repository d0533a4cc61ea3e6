"""The rules that set one greedy policy apart from another, as data."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import RecomputeGate, Sharing
from engine.schedule.scenario import Contention, RecomputeRule

GATES: dict[RecomputeRule, RecomputeGate] = {"jit": "jit", "blocking": "jit", "late": "late", "idle": "none"}


class Gate(IntEnum):
    """Recompute rules as numbers for the kernels (docs/dev/contracts.md, `recompute_rule`)."""

    JIT = 0
    IDLE = 1
    LATE = 2
    BLOCKING = 3


class Tie(IntEnum):
    """Which of several pipelines gets a shared link first (docs/dev/contracts.md, `contention`)."""

    RANK = 0
    ROUND_ROBIN = 1
    FIFO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one greedy policy on one scenario.

    On a free GPU, B goes before everything; R goes before F, except under ``idle``. Ops of one kind run in
    microbatch order. At most one microbatch per GPU is recomputed ahead of its B, as its full activations
    must be held until then.

    in_flight : most microbatches held, shape (stages,).
    hold_for_link : an op whose output crosses a WAN hop starts only when the link is free right after it.
    """

    recompute: RecomputeRule
    sharing: Sharing
    in_flight: NDArray[np.int64]
    contention: Contention = "rank"
    hold_for_link: bool = False
