"""The figures of a run as TensorBoard events: `tensorboard --logdir DIR` shows them while it trains.

Steps count those done, as in the CSV; wall times are those of the run, not of the writing.
"""

from pathlib import Path

from tensorboardX import SummaryWriter

from engine.job.events.training import Step, Validation

# Field of a `step` event → its tag. Of one prefix TensorBoard draws the charts side by side.
TAGS = {
    "loss": "loss/train",
    "bits_per_byte": "bits_per_byte/train",
    "grad_norm": "optimizer/grad_norm",
    "learning_rate": "optimizer/learning_rate",
    "tokens": "data/tokens",
}
OF_VALIDATION = {"loss": "loss/validation", "bits_per_byte": "bits_per_byte/validation"}


class TensorBoard:
    """Writes the `step` and `validation` events of a run into a file of its own in `folder`.

    Raises
    ------
    OSError
        The folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder), flush_secs=10)

    def step(self, event: Step) -> None:
        """Take a `step` event."""
        self._add(TAGS, event, event.iteration + 1)

    def validation(self, event: Validation) -> None:
        """Take a `validation` event."""
        self._add(OF_VALIDATION, event, event.step)

    def _add(self, tags: dict[str, str], event: Step | Validation, step: int) -> None:
        for name, tag in tags.items():
            value = getattr(event, name)
            if value is not None:
                self._writer.add_scalar(tag, value, step, walltime=event.t)

    def close(self) -> None:
        """Write what is held and close the file."""
        self._writer.close()
