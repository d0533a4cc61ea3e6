"""What a dry run says: one question with its answer."""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question with its answer. `blocks`: a launch is refused or fails; else, where not ok, it waits."""

    name: str
    ok: bool
    text: str
    blocks: bool = False


def size(count: float) -> str:
    """Bytes in words."""
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 10 else f"{count / 2**20:,.1f} MiB"
