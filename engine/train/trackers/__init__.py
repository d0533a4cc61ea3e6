"""Experiment trackers. A new one is a file with a class, a line in TRACKERS, and a field of the document."""

from importlib.util import find_spec
from pathlib import Path

from engine.errors import InputError, reason_of
from engine.job.events.training import Step, Validation
from engine.job.sections.tracking import TrackingSection
from engine.train.trackers.base import TrackedRun, Tracker
from engine.train.trackers.mlflow_store import MlflowStore
from engine.train.trackers.tensorboard import TensorBoard
from engine.train.trackers.wandb_offline import WandbOffline

TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MlflowStore,
    "wandb": WandbOffline,
}
# Field of an event → the name of its figure. Of one prefix trackers draw the charts side by side.
_OF_STEP = {
    "loss": "loss/train",
    "bits_per_byte": "bits_per_byte/train",
    "grad_norm": "optimizer/grad_norm",
    "learning_rate": "optimizer/learning_rate",
    "tokens": "data/tokens",
}
_OF_VALIDATION = {"loss": "loss/validation", "bits_per_byte": "bits_per_byte/validation"}


def figures_of(event: Step | Validation) -> tuple[dict[str, float], int]:
    """The figures of an event by name, as far as they are known, and the number of steps done."""
    names, step = (_OF_STEP, event.iteration + 1) if isinstance(event, Step) else (_OF_VALIDATION, event.step)
    values = {name: getattr(event, field) for field, name in names.items()}
    return {name: value for name, value in values.items() if value is not None}, step


def check_trackers(section: TrackingSection) -> None:
    """Make the folders of the trackers on this machine.

    Raises
    ------
    InputError
        A package is not installed here, or a folder cannot be made or written.
    """
    for name, folder in section.folders.items():
        tracker = TRACKERS[name]
        if find_spec(tracker.package) is None:
            allowed = f"needs the package {tracker.package}: pip install 'meridian[{tracker.extra}]'"
            raise InputError(f"tracking.{name}", folder, allowed)
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (probe := Path(folder) / ".meridian").touch()
            probe.unlink()
        except OSError as error:
            raise InputError(f"tracking.{name}", folder, f"cannot be written ({reason_of(error)})") from None


def open_trackers(folders: dict[str, str], run: TrackedRun) -> list[Tracker]:
    """The trackers of a run, each in its folder. Raises OSError."""
    return [TRACKERS[name](Path(folder), run) for name, folder in folders.items()]
