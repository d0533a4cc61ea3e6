"""`tracking` of a training job: folders in which experiment trackers keep the figures of the run."""

from engine.inputs import Document
from engine.job.sections.limits import PathName


class TrackingSection(Document):
    """A folder for each tracker, on the machine of the first rank; nothing is sent over the network.

    tensorboard : for event files.  mlflow : for mlflow.db, a SQLite store.  wandb : for an offline run of
        Weights & Biases.
    """

    tensorboard: PathName | None = None
    mlflow: PathName | None = None
    wandb: PathName | None = None

    @property
    def folders(self) -> dict[str, str]:
        """The folder of each tracker that is asked for."""
        return {name: folder for name, folder in self if folder is not None}
