"""What a run is to an experiment tracker, and what a tracker is to a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

Ending = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run by its name, and the document of its job."""

    name: str
    document: dict[str, Any]


class Tracker(Protocol):
    """Keeps the figures of a run in a folder, without the network.

    package : that it needs.  extra : of meridian, that installs the package.
    """

    package: ClassVar[str]
    extra: ClassVar[str]

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        """Begin a run in `folder`, which is there. Raises OSError where it cannot be written."""

    def add(self, figures: Mapping[str, float], step: int, t: float) -> None:
        """Take figures by name after so many steps, at Unix time `t`."""

    def close(self, ending: Ending) -> None:
        """Write what is held, and end the run."""
