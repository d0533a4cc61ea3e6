"""The partition of a request: its accumulation, its cuts, or the reason why there are none."""

from dataclasses import dataclass

from engine.cluster.gpus import GIB
from engine.plan.swap.partition import (
    MOST_ACCUMULATION,
    Chain,
    Constraints,
    partition,
    smallest_accumulation,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory of the device, and its permanent contents.

    gradients_bytes : of the whole model, if they stay on the device.
    stored_bytes : activations that each mini-batch of a step stores there between its two passes.
    resident : sub-models that must fit at once.
    """

    capacity_bytes: float
    gradients_bytes: float
    stored_bytes: float
    resident: int

    def reserved_bytes(self, accumulation: int) -> float:
        return self.gradients_bytes + accumulation * self.stored_bytes

    def constraints(self, accumulation: int, overlap: bool = True) -> Constraints:
        return Constraints(
            capacity_bytes=self.capacity_bytes - self.reserved_bytes(accumulation),
            resident=self.resident,
            accumulation=accumulation if overlap else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """First layers of the sub-models at `accumulation`; with a `reason` they break only the overlap."""

    accumulation: int | None
    firsts: tuple[int, ...] = ()
    reason: str | None = None


def find(chain: Chain, room: Room, accumulation: int | None) -> Cuts:
    """The partition at the given accumulation, or at the smallest that has one."""
    reason = too_large(chain, room, accumulation or 1)
    if reason:
        return Cuts(accumulation=accumulation, reason=reason)
    if accumulation is None:
        return _at_smallest(chain, room)
    firsts = partition(chain, room.constraints(accumulation))
    return Cuts(accumulation=accumulation, firsts=firsts) if firsts else _stalling(chain, room, accumulation)


def too_large(chain: Chain, room: Room, accumulation: int) -> str | None:
    """Why no partition fits into the memory, or None if one does."""
    free = room.capacity_bytes - room.reserved_bytes(accumulation)
    if free <= 0:
        stays = f"{_size(room.reserved_bytes(accumulation))} ({_taken(room, accumulation)})"
        return f"what stays on the device takes {stays}: the GPU has {_size(room.capacity_bytes)}"
    memory = [layer.memory_bytes for layer in chain.layers]
    largest = max(range(len(memory)), key=memory.__getitem__)
    left = "" if free == room.capacity_bytes else f" left by what stays there ({_taken(room, accumulation)})"
    if memory[largest] > free:
        name = chain.layers[largest].name
        return f"layer {largest} ({name}) needs {_size(memory[largest])}: the GPU has {_size(free)}{left}"
    if room.resident == 1 or chain.whole_bytes <= free:
        return None
    pair = max(range(len(memory) - 1), key=lambda i: memory[i] + memory[i + 1])
    both = memory[pair] + memory[pair + 1]
    if both <= free:
        return None
    return (
        f"layers {pair} and {pair + 1}, one running and one loading, need {_size(both)}: "
        f"the GPU has {_size(free)}{left}"
    )


def _at_smallest(chain: Chain, room: Room) -> Cuts:
    """The smallest accumulation that suffices for its own memory: stored activations grow with it."""
    accumulation, needed = 0, 1
    while needed > accumulation:
        accumulation = needed
        reason = too_large(chain, room, accumulation)
        if reason:
            return Cuts(
                accumulation=None, reason=f"at the accumulation {accumulation} that covers loading: {reason}"
            )
        smallest = smallest_accumulation(chain, room.constraints(accumulation))
        if smallest is None:
            return Cuts(
                accumulation=None, reason=f"no accumulation up to {MOST_ACCUMULATION:,} covers loading"
            )
        needed = smallest
        if not room.stored_bytes:
            accumulation = needed
    firsts = partition(chain, room.constraints(accumulation))
    assert firsts is not None  # `smallest_accumulation` has shown that it exists
    return Cuts(accumulation=accumulation, firsts=firsts)


def _stalling(chain: Chain, room: Room, accumulation: int) -> Cuts:
    """A partition that fits, though the GPU waits for loads: that of the smallest accumulation, if any."""
    enough = _at_smallest(chain, room)
    firsts = enough.firsts or partition(chain, room.constraints(accumulation, overlap=False))
    assert firsts is not None  # every layer and pair of layers fits
    remedy = f"the smallest that does is {enough.accumulation}" if enough.firsts else "none does"
    reason = f"accumulation {accumulation} does not cover loading with running: {remedy}"
    return Cuts(accumulation=accumulation, firsts=firsts, reason=reason)


def _taken(room: Room, accumulation: int) -> str:
    parts = []
    if room.gradients_bytes:
        parts.append(f"gradients {_size(room.gradients_bytes)}")
    if room.stored_bytes:
        parts.append(f"activations of {accumulation} mini-batches {_size(accumulation * room.stored_bytes)}")
    return ", ".join(parts)


def _size(size: float) -> str:
    return f"{size / GIB:.4g} GiB" if size >= GIB / 1024 else f"{size:.6g} bytes"
