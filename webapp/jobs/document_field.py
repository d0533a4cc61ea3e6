"""The column of a job's document: rows of before documents had sections are read in sections."""

from typing import Any

from django.db import models
from django.db.models.fields.json import KeyTransform

from engine.job.flat import in_sections


class DocumentField(models.JSONField):
    """JSON of the document of `meridian train`; what is read is in sections, whatever was written."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        value_in_python = super().from_db_value(value, expression, connection)
        if isinstance(expression, KeyTransform) or not isinstance(value_in_python, dict):
            return value_in_python  # a part of it
        return in_sections(value_in_python)

    def deconstruct(self) -> Any:
        """As JSON: migrations know no more of it."""
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.JSONField", arguments, options
