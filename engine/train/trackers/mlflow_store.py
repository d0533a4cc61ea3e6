"""The figures of a run in MLflow's SQLite store: `mlflow ui --backend-store-uri sqlite:///DIR/mlflow.db`."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.train.trackers.base import Ending, TrackedRun, Tracker

EXPERIMENT = "meridian"
EVERY_S = 1.0  # a write takes 20 ms
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # of a write, by MLflow's own limits
LONGEST_PARAMETER = 6000  # characters, likewise
_STATUS: dict[Ending, str] = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowStore(Tracker):
    """A run of the experiment `meridian`; the fields of the job's document are its parameters."""

    package, extra = "mlflow", "mlflow"

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder.resolve()}/mlflow.db")
        self._metric = Metric
        there = self._client.get_experiment_by_name(EXPERIMENT)
        artifacts = (folder.resolve() / "artifacts").as_uri()
        experiment = there.experiment_id if there else self._client.create_experiment(EXPERIMENT, artifacts)
        self._run = self._client.create_run(experiment, run_name=run.name).info.run_id
        parameters = [Param(name, str(value)[:LONGEST_PARAMETER]) for name, value in leaves(run.document)]
        for part in _parts(parameters, MOST_PARAMETERS):
            self._client.log_batch(self._run, params=part)
        self._held: list[Any] = []
        self._written = time.monotonic()

    def add(self, figures: Mapping[str, float], step: int, t: float) -> None:
        """Hold the figures, and write what is held once a second."""
        self._held += [self._metric(name, value, round(1e3 * t), step) for name, value in figures.items()]
        if time.monotonic() - self._written > EVERY_S:
            self._write()

    def close(self, ending: Ending) -> None:
        """Write what is held, and end the run."""
        self._write()
        self._client.set_terminated(self._run, _STATUS[ending])

    def _write(self) -> None:
        for part in _parts(self._held, MOST_METRICS):
            self._client.log_batch(self._run, metrics=part)
        self._held = []
        self._written = time.monotonic()


def leaves(document: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a document by their paths: ("optimizer.lr", 0.003)."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value


def _parts(rows: list[Any], most: int) -> list[list[Any]]:
    return [rows[first : first + most] for first in range(0, len(rows), most)]
