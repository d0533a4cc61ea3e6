"""What `adapt` of a training job goes with; its fields are engine.runtime.job_settings.AdaptSettings."""

from typing import TYPE_CHECKING

from engine.errors import InputError

if TYPE_CHECKING:
    from engine.runtime.job import TrainJob


def check(job: "TrainJob") -> None:
    """Raise InputError where the job cannot adapt."""
    if job.adapt is None:
        return
    given = job.adapt.model_dump()
    if job.swaps:
        raise InputError("adapt", given, "must be left out with strategy swap: its order is ATOM's")
