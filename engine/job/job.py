"""The document of `meridian train FILE`: one training job across data centres, validated without torch."""

from pydantic import model_validator

from engine.job.checks import check
from engine.job.fields import JobFields


class TrainJob(JobFields):
    """A validated training job: its fields agree with each other, and its scenario is valid."""

    @model_validator(mode="after")
    def _consistent(self) -> "TrainJob":
        check(self)
        if not self.swaps:
            _ = self.scenario  # the scenario's own rules (policy, per-stage lists) hold for the job too
        return self
