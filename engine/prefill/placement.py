"""The types that the prefill controller exchanges with its callers: requests, plans, refusals, settings."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.prefill.kernels.place import BEGIN, END

Floats = NDArray[np.float64]
Order = Literal["fifo", "longest_fit"]
Reason = Literal["no_bubble", "too_long", "queue_full", "kv_space", "ttft", "training_paused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementQuery:
    """Asks for a `Placement` of a prompt of `tokens` that arrives at `arrival_ms` on the controller's clock.

    priority : higher goes first among waiting requests.  deadline_ms : latest hand-over of its KV cache, in
        addition
    to the controller's objective.  dc : index of the DC in which it must run, None for any.
    """

    id: int | str
    tokens: int
    arrival_ms: float
    priority: int = 0
    deadline_ms: float = math.inf
    dc: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The KV cache: bytes of a token, the bytes/s at which it leaves, and the budget of each GPU.

    A request's cache leaves when its last chunk has ended; the decode GPU receives it all.
    """

    token_bytes: float = 0.0
    bytes_per_s: float = math.inf
    budget_bytes: float = math.inf

    def transfer_ms(self, tokens: int) -> float:
        return tokens * self.token_bytes / self.bytes_per_s * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How requests are placed.

    guard_ms : reserved before every training op.  queue : most requests that wait.
    chunk_tokens : least tokens of a chunk except a request's last; None: a request runs in one piece.
    order : of waiting requests, by arrival or longest first.  ttft_slo_ms : from arrival to the end of the KV
    transfer, of every request.  reserve_ms : if the queue is full, requests are still accepted that begin
    within this time; their placement is final.
    """

    guard_ms: float = 1.0
    queue: int = 8
    chunk_tokens: int | None = None
    order: Order = "fifo"
    ttft_slo_ms: float = math.inf
    reserve_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """GPUs and times of an accepted request: rows of (GPU, begin, end, tokens), chunk after chunk.

    deadline_ms : the earlier of its own and the objective's, on the controller's clock.
    """

    request: PlacementQuery
    pipeline: int
    rows: Floats
    kv_done_ms: float
    deadline_ms: float

    @property
    def start_ms(self) -> float:
        return float(self.rows[0, BEGIN])

    @property
    def end_ms(self) -> float:
        return float(self.rows[-1, END])

    @property
    def queue_ms(self) -> float:
        """From arrival to the first interval."""
        return self.start_ms - self.request.arrival_ms

    @property
    def ttft_ms(self) -> float:
        """From arrival to the end of the KV transfer."""
        return self.kv_done_ms - self.request.arrival_ms

    @property
    def late(self) -> bool:
        return self.kv_done_ms > self.deadline_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is not accepted, and the ms after which it may be; None: never as it is."""

    reason: Reason
    retry_after_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Effects of a change of the training forecast on accepted requests.

    moved : re-planned, of these `late` beyond their deadline.  lost : without a placement within the horizon.
    """

    moved: tuple[Placement, ...] = ()
    lost: tuple[Placement, ...] = ()

    @property
    def late(self) -> tuple[Placement, ...]:
        return tuple(placement for placement in self.moved if placement.late)
