"""`data` of a training job: its text, and the part of it that is never trained on."""

from typing import Annotated

from pydantic import Field

from engine.inputs import Count, Document, Number
from engine.job.sections.limits import PathName, Steps


class ValidationSettings(Document):
    """Text that is never trained on, and how often its loss is taken.

    every : steps; the last step is followed by one too.
    share : of every file of `data.files`, at its end.
    prepared : with `data.prepared`, the folder that is validated on.
    sequences : the same ones each time.
    """

    every: Steps
    share: Annotated[Number, Field(gt=0, le=0.5)] = 0.05
    sequences: Annotated[Count, Field(le=1_000_000)] = 64
    prepared: PathName | None = None


class DataSection(Document):
    """The text of a job.

    files : a file or folder of text, or one by data centre; None: the source text of the Python standard
        library.
    prepared : in place of `files`, a folder of `meridian data prepare` or Megatron's NAME.idx, or one by data
        centre.
    """

    files: PathName | dict[str, PathName] | None = None
    prepared: PathName | dict[str, PathName] | None = None
    validation: ValidationSettings | None = None

    @property
    def path(self) -> str | dict[str, str] | None:
        """Where the data lies, of either kind."""
        return self.files if self.prepared is None else self.prepared

    @property
    def path_field(self) -> str:
        """The field of `path`."""
        return "data.files" if self.prepared is None else "data.prepared"
