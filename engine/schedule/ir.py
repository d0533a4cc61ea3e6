"""The schedule: for each GPU the ordered list of its ops, for each shared WAN hop the order of transfers.

It is the only intermediate representation of Meridian. A policy builds it, the simulator times it, the
executor runs it, the timeline draws it. It holds order only, never times. Each op starts as soon as its GPU
is free, its inputs have arrived and its gate allows.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.schedule.traversal import Traversal

# When an R may start, beyond its index in the order.
# none: at once; jit: once B of its microbatch has started on the next stage; late: once its gradient is
# there.
RecomputeGate = Literal["none", "jit", "late"]
Sharing = Literal["spatial", "temporal"]


class OpKind(IntEnum):
    """Kinds of op on a GPU."""

    F = 0  # forward
    R = 1  # recompute
    B = 2  # backward (whole, or its input part if W follows)
    W = 3  # weight gradient


@dataclass(frozen=True, slots=True)
class Op:
    """One op of one microbatch on one stage; prints as ``F3``, or ``F3.1`` for model chunk 1."""

    kind: OpKind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One transfer over a hop: the output of one op of (pipeline, microbatch, chunk)."""

    pipeline: int
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"P{self.pipeline}/{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


NO_OP = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Order of ops on every GPU, and of transfers on links.

    ops : int32, shape (pipelines, stages, longest); ``(chunk · M + microbatch) · 4 + kind``, padded with −1.
    sharing : of WAN hops. ``temporal``: the pipelines of the cell take turns on one link of n times the rate.
    link_order : for a link (from_stage, to_stage), int32 codes ``pipeline · (chunks · M) + chunk · M +
        microbatch`` of its transfers (chunk of the producing op), in sending order. Every shared link (WAN
        hops under temporal sharing with several pipelines) is listed. If a listed link is not shared, each
        pipeline's own link sends its part of the list in that order. A link that is not listed sends in
        the order of its producing ops. The hop of a loop from the last stage to the first is written
        (P − 1, P), its other direction (P, P − 1).
    """

    microbatches: int
    traversal: Traversal
    ops: NDArray[np.int32]
    sharing: Sharing
    link_order: dict[tuple[int, int], NDArray[np.int32]]
    recompute_gate: RecomputeGate

    @property
    def pipelines(self) -> int:
        return int(self.ops.shape[0])

    @property
    def stages(self) -> int:
        return int(self.ops.shape[1])

    @property
    def chunks(self) -> int:
        return self.traversal.chunks

    def shares(self, wan_hop: int) -> bool:
        """Whether the cell's pipelines take turns on the links of this WAN hop."""
        return self.sharing == "temporal" and (wan_hop, wan_hop + 1) in self.link_order

    def has(self, kind: OpKind) -> bool:
        """Whether any GPU runs an op of `kind`."""
        return bool(np.any((self.ops != NO_OP) & ((self.ops & 3) == kind)))

    def order(self, pipeline: int, stage: int) -> tuple[Op, ...]:
        """The ops of one GPU in the order in which it runs them."""
        codes = self.ops[pipeline, stage]
        return tuple(self.decode(int(code)) for code in codes if code != NO_OP)

    def transfers(self, from_stage: int, to_stage: int) -> tuple[Transfer, ...]:
        """The order on one link; empty if it is not listed."""
        codes = self.link_order.get((from_stage, to_stage), ())
        return tuple(self.decode_transfer(int(code)) for code in codes)

    def decode(self, code: int) -> Op:
        """The op that `code` stands for."""
        chunk, microbatch = divmod(code >> 2, self.microbatches)
        return Op(OpKind(code & 3), microbatch, chunk)

    def decode_transfer(self, code: int) -> Transfer:
        """The transfer that a `code` of `link_order` stands for."""
        pipeline, rest = divmod(code, self.chunks * self.microbatches)
        chunk, microbatch = divmod(rest, self.microbatches)
        return Transfer(pipeline=pipeline, microbatch=microbatch, chunk=chunk)

    def __str__(self) -> str:
        rows = [
            f"microbatches {self.microbatches}, chunks {self.chunks}, traversal {self.traversal.name}, "
            f"sharing {self.sharing}, gate {self.recompute_gate}"
        ]
        # All GPUs run the same ops in different orders, so the text of each op is made once.
        words = {int(code): str(self.decode(int(code))) for code in np.unique(self.ops) if code != NO_OP}
        for pipeline, stage in np.ndindex(self.pipelines, self.stages):
            codes = self.ops[pipeline, stage].tolist()
            order = " ".join(words[code] for code in codes if code != NO_OP)
            rows.append(f"P{pipeline} S{stage}: {order}")
        for from_stage, to_stage in self.link_order:
            sent = " ".join(map(str, self.transfers(from_stage, to_stage)))
            rows.append(f"link {from_stage}>{to_stage}: {sent}")
        return "\n".join(rows)
