"""The figures of a run as TensorBoard events: `tensorboard --logdir DIR` shows them while it trains.

Wall times are those of the run, not of the writing.
"""

from collections.abc import Mapping
from pathlib import Path

from engine.train.trackers.base import Ending, TrackedRun, Tracker


class TensorBoard(Tracker):
    """Writes a file of its own into the folder."""

    package, extra = "tensorboardX", "runtime"

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), flush_secs=10)

    def add(self, figures: Mapping[str, float], step: int, t: float) -> None:
        """Write the figures under their names."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step, walltime=t)

    def close(self, ending: Ending) -> None:
        """Write what is held and close the file."""
        self._writer.close()
