"""The document of `meridian train FILE`: one training job across data centres, validated without torch."""

from typing import Any

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from engine.inputs import input_error
from engine.job.checks import check
from engine.job.fields import JobFields
from engine.job.flat import converted
from engine.job.swap.filled import filled


class TrainJob(JobFields):
    """A validated training job: its sections agree with each other, and its scenario is valid.

    A flat document is read too (engine.job.flat).
    """

    @model_validator(mode="after")
    def _consistent(self) -> "TrainJob":
        check(self)
        if self.swap_strategy is None:
            _ = self.scenario  # the scenario's own rules (policy, per-stage lists) hold for the job too
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, document: Any, handler: ModelWrapValidatorHandler["TrainJob"]) -> "TrainJob":
        if not isinstance(document, dict):
            return handler(document)
        conversion = converted(document)
        try:
            return handler(filled(conversion.document))
        except ValidationError as error:
            if not conversion.is_flat:
                raise
            raise conversion.named(input_error(error, cls)) from None

    def with_fields(self, section: str, **values: Any) -> "TrainJob":
        """A copy with other values in one section, which are not validated."""
        changed = getattr(self, section).model_copy(update=values)
        return self.model_copy(update={section: changed})

    def to_document(self) -> dict[str, Any]:
        """The document of the job as JSON has it, without what is not given."""
        document = self.model_dump(mode="json", exclude_none=True)
        return {name: section for name, section in document.items() if section not in ({}, [])}
