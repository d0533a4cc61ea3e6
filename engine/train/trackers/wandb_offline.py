"""The figures of a run as an offline run of Weights & Biases, which `wandb sync` sends if one wants that."""

import os
from collections.abc import Mapping
from pathlib import Path

from engine.train.trackers.base import Ending, TrackedRun, Tracker

PROJECT = "meridian"


class WandbOffline(Tracker):
    """A run of the project `meridian`; the job's document is its config."""

    package, extra = "wandb", "wandb"

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # no reports to its makers
        import wandb

        self._teardown = wandb.teardown
        quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True)
        self._run = wandb.init(
            project=PROJECT,
            name=run.name,
            dir=str(folder),
            config=run.document,
            mode="offline",
            settings=quiet,
        )

    def add(self, figures: Mapping[str, float], step: int, t: float) -> None:
        """Take the figures of a step; `_timestamp` is the run's own time, not that of the writing."""
        self._run.log({**figures, "_timestamp": t}, step=step)

    def close(self, ending: Ending) -> None:
        """End the run, and wandb's own process, which may still write."""
        self._run.finish(exit_code=0 if ending == "finished" else 1)
        self._teardown()
