"""The span: one interval of work on one track, simulated or measured.

The same code stores, streams, draws and exports all spans, whatever their source (architecture.md, "One
span").
"""

from dataclasses import dataclass
from typing import Any, Literal

Track = Literal["gpu", "wan", "lan"]
SpanOp = Literal["F", "R", "B", "W", "all_reduce", "optimizer", "prefill", "load", "checkpoint"]
Payload = Literal["activation", "gradient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An op on a GPU (track ``gpu``) or a transfer between two stages (``wan``, ``lan``).

    Times are in the unit of their source: abstract units when simulated from a scenario, seconds
    (Unix time when measured) in a run. `arrives` is `end` plus the one-way latency.
    """

    track: Track
    pipeline: int
    start: float
    end: float
    microbatch: int | None = None
    chunk: int = 0
    # track gpu
    stage: int | None = None
    op: SpanOp | None = None
    # track wan, lan
    from_stage: int | None = None
    to_stage: int | None = None
    payload: Payload | None = None
    arrives: float | None = None
    bytes: int | None = None
    # in a run
    run: str | None = None
    iteration: int | None = None
    gpu: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The span as docs/dev/contracts.md names its fields; fields that do not apply are left out."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}
