"""`data` of a training job: its text, and the part of it that is never trained on."""

from typing import Annotated

from pydantic import Field

from engine.inputs import Count, Document, Number
from engine.job.sections.limits import PathName, Steps


class ValidationSettings(Document):
    """Text that is never trained on, and how often its loss is taken.

    every : steps; the last step is followed by one too.
    share : of every file, at its end.
    sequences : the same ones each time.
    """

    every: Steps
    share: Annotated[Number, Field(gt=0, le=0.5)] = 0.05
    sequences: Annotated[Count, Field(le=1_000_000)] = 64


class DataSection(Document):
    """The text of a job.

    files : a file or folder, or one by data centre; None: the source text of the Python standard library.
    """

    files: PathName | dict[str, PathName] | None = None
    validation: ValidationSettings | None = None
