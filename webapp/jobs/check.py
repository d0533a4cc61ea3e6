"""What a dry run says: one question with its answer."""

from collections.abc import Sequence
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question with its answer. `blocks`: a launch is refused or fails; else, where not ok, it waits."""

    name: str
    ok: bool
    text: str
    blocks: bool = False


def known_sizes(sizes: Sequence[int | None]) -> list[int]:
    """The memory of machines as their agents have seen it; empty unless it is known of all of them."""
    known = [size for size in sizes if size is not None]
    return known if len(known) == len(sizes) else []


def size(count: float) -> str:
    """Bytes in words."""
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 10 else f"{count / 2**20:,.1f} MiB"
