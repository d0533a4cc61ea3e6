"""The figures of a run as CSV: a row per step, with the validation loss where one was taken after it."""

import csv
from typing import IO, Any

from engine.job.events.training import Step, Validation

FIELDS_OF_STEP = ("t", "loss", "grad_norm", "learning_rate", "tokens", "bits_per_byte")
FIELDS = ("step", *FIELDS_OF_STEP, "validation_loss", "validation_bits_per_byte")


class Metrics:
    """Writes the `step` and `validation` events of a run; `step` counts those done, `t` is Unix seconds.

    A row is held until the next step's, as its validation comes after it.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        self._writer.writeheader()
        self._row: dict[str, Any] | None = None

    def step(self, event: Step) -> None:
        """Take a `step` event."""
        self._write()
        row = {name: getattr(event, name) for name in FIELDS_OF_STEP}
        self._row = {"step": event.iteration + 1, **row}

    def validation(self, event: Validation) -> None:
        """Take a `validation` event."""
        if self._row is None or self._row["step"] != event.step:
            self._write()
            self._row = {"step": event.step, "t": event.t}
        self._row["validation_loss"] = event.loss
        self._row["validation_bits_per_byte"] = event.bits_per_byte

    def close(self) -> None:
        """Write what is held; the file stays open."""
        self._write()

    def _write(self) -> None:
        if self._row is not None:
            self._writer.writerow(self._row)
            self._file.flush()
        self._row = None
